// Who makes room for a new matrix (server/engine/resident_room.cc).
#include <gtest/gtest.h>

#include <string>

#include "server/engine/resident_store.h"
#include "tests/engine/store_fixture.h"

namespace tcgemm {
namespace {

TEST(ResidentRoomTest, EvictsTheLeastRecentlyUsed) {
  StoreFixture f(3);
  for (const char* name : {"a", "b", "c"}) {
    f.Fill(name);
    f.clock.Advance(Nanos(1));
  }
  EXPECT_TRUE(f.Has("a"));  // used last
  f.Fill("d", kBob);
  EXPECT_FALSE(f.Has("b"));
  EXPECT_TRUE(f.Has("a"));
  EXPECT_TRUE(f.Has("c"));
}

TEST(ResidentRoomTest, KeepsWhatIsUsedUnfinishedOrPreloaded) {
  StoreFixture f(3);
  f.Fill("used");
  const ResidentRef used = f.store.Find(kAnn, "used").value();
  ASSERT_TRUE(f.Create("unfinished").ok());
  const ResidentRef preloaded =
      f.store.CreatePreloaded({.name = "all", .rows = 32, .cols = 10}).value();
  preloaded->SetComplete();
  const auto full = f.Create("more");
  EXPECT_EQ(full.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(full.status().message().find("needs 4096 bytes; 12288 of the 12288"), std::string::npos)
      << full.status();
}

TEST(ResidentRoomTest, EvictsNothingInVain) {
  StoreFixture f(3);
  f.Fill("a");
  ASSERT_TRUE(f.Create("unfinished").ok());
  EXPECT_EQ(f.Create("large", kAnn, Nanos(0), 96).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(f.Has("a"));
  EXPECT_TRUE(f.Create("fits", kAnn, Nanos(0), 32).ok());
  EXPECT_TRUE(f.Has("a"));
}

// Many small matrices of one caller must not keep others out for good.
TEST(ResidentRoomTest, TheLimitOnTheirNumberEvictsToo) {
  constexpr size_t kLimit = ResidentStore::kMaxMatrices;
  StoreFixture f(kLimit + 1);
  f.Fill("oldest");
  f.clock.Advance(Nanos(1));
  const ResidentRef used = f.Create("used").value();
  for (size_t i = 2; i < kLimit; ++i) f.Fill(std::to_string(i));
  const auto bobs = f.Create("w", kBob);
  EXPECT_TRUE(bobs.ok()) << bobs.status();
  EXPECT_FALSE(f.Has("oldest"));
  EXPECT_TRUE(f.Has("used"));
  EXPECT_TRUE(f.Has("2"));
}

TEST(ResidentRoomTest, TheShareOfACallerMayChange) {
  StoreFixture f(4);
  f.Fill("a");
  f.Fill("b");
  const ResidentRef a = f.store.Find(kAnn, "a").value();
  const ResidentRef b = f.store.Find(kAnn, "b").value();
  f.store.SetBytesPerCaller(2 * 4096);
  EXPECT_EQ(f.Create("c").status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(f.Create("c", kBob).ok());
  f.store.SetBytesPerCaller(0);
  EXPECT_TRUE(f.Create("c").ok());
}

// Two callers, one of whom takes all there is: the other gets an equal share, and no more, and what
// it has of that stays.
TEST(ResidentRoomTest, WhoHoldsMoreMakesRoomFirst) {
  StoreFixture f(4);
  for (const char* name : {"a1", "a2", "a3", "a4"}) {
    f.Fill(name);
    f.clock.Advance(Nanos(1));
  }
  f.Fill("b1", kBob);
  f.clock.Advance(Nanos(1));
  EXPECT_FALSE(f.Has("a1"));
  f.Fill("b2", kBob);
  EXPECT_FALSE(f.Has("a2"));
  f.clock.Advance(Nanos(1));
  EXPECT_TRUE(f.Has("b1", kBob)) << "two operands must fit beside a caller with many";
  f.clock.Advance(Nanos(1));
  f.Fill("b3", kBob);
  EXPECT_TRUE(f.Has("b3", kBob));
  EXPECT_FALSE(f.Has("b2", kBob)) << "its own goes once it holds as much as the other";
  EXPECT_TRUE(f.Has("a3"));
  EXPECT_TRUE(f.Has("a4"));
}

TEST(ResidentRoomTest, TheOthersGoLast) {
  StoreFixture f(3);
  f.Fill("b", kBob);
  f.Fill("a1");
  f.clock.Advance(Nanos(1));
  f.Fill("a2");
  f.clock.Advance(ResidentStore::kRecentUse - Nanos(2));
  // Larger than all of its own.
  EXPECT_EQ(f.Create("a3", kAnn, Nanos(0), 96).status().code(),
            absl::StatusCode::kResourceExhausted)
      << "who holds less has just used his";
  f.clock.Advance(Nanos(1));
  const auto large = f.Create("a3", kAnn, Nanos(0), 96);
  EXPECT_TRUE(large.ok()) << large.status();
  EXPECT_FALSE(f.Has("b", kBob));
}

// A header without bytes takes no room from what others work with, nor holds what it got for long.
TEST(ResidentRoomTest, AnUploadThatStallsGivesWay) {
  StoreFixture f(2);
  f.Fill("b", kBob);
  EXPECT_EQ(f.Create("all", kAnn, Nanos(0), 64).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(f.Has("b", kBob));
  ASSERT_TRUE(f.Create("stalls").ok());
  f.clock.Advance(ResidentStore::kStalledUpload - Nanos(1));
  EXPECT_EQ(f.Create("b2", kBob, Nanos(0), 64).status().code(),
            absl::StatusCode::kResourceExhausted);
  // Without a byte, that is no progress.
  EXPECT_TRUE(f.store.Holds(f.store.Find(kAnn, "stalls").value()));
  f.clock.Advance(Nanos(1));
  EXPECT_TRUE(f.Create("b2", kBob, Nanos(0), 64).ok());
  EXPECT_FALSE(f.Has("stalls"));
}

// A byte every now and then is no upload.
TEST(ResidentRoomTest, AnUploadThatTricklesGivesWay) {
  constexpr Nanos kMs = std::chrono::milliseconds(1);
  constexpr size_t kPerMs = ResidentStore::kSlowestUpload / 1000;
  StoreFixture f(3);
  {
    const ResidentRef trickles = f.Create("trickles", kAnn, Nanos(0), 96).value();
    trickles->EndWrite(*trickles->BeginWrite({0, kPerMs + 10}), true);
    f.clock.Advance(ResidentStore::kStalledUpload - kMs);
    EXPECT_TRUE(f.store.Touch(trickles));
  }
  f.clock.Advance(2 * kMs);
  EXPECT_EQ(f.Create("b", kBob).status().code(), absl::StatusCode::kResourceExhausted)
      << "as many bytes as the slowest upload has by now";
  {
    const ResidentRef trickles = f.store.Find(kAnn, "trickles").value();
    trickles->EndWrite(*trickles->BeginWrite({1500, 1501}), true);
    EXPECT_EQ(trickles->present_bytes(), kPerMs + 11);
    EXPECT_TRUE(f.store.Touch(trickles));
  }
  f.clock.Advance(kMs);
  EXPECT_TRUE(f.Create("b", kBob).ok());
  EXPECT_FALSE(f.Has("trickles"));
}

TEST(ResidentRoomTest, ACallerStaysWithinItsShare) {
  StoreFixture f(8, 2 * kPage);
  f.Fill("b", kBob);
  f.Fill("a1");
  f.clock.Advance(Nanos(1));
  f.Fill("a2");
  f.clock.Advance(Nanos(1));
  f.Fill("a3");
  EXPECT_FALSE(f.Has("a1")) << "there is room, but not for this caller";
  EXPECT_TRUE(f.Has("a2"));
  EXPECT_TRUE(f.Has("b", kBob));
  EXPECT_EQ(f.store.pool().used_bytes(), 3 * kPage);
  // Preloaded ones are nobody's.
  for (const char* name : {"p1", "p2", "p3"}) {
    EXPECT_TRUE(f.store.CreatePreloaded({.name = name, .rows = 32, .cols = 10}).ok());
  }
}

TEST(ResidentRoomTest, AFullShareNamesBothNumbers) {
  StoreFixture f(8, 2 * kPage);
  const auto large = f.Create("large", kAnn, Nanos(0), 96);
  EXPECT_EQ(large.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(large.status().message().find("takes 12288 bytes, this server keeps at most 8192 of "
                                          "one caller (--resident-bytes-per-caller)"),
            std::string::npos)
      << large.status();
  f.Fill("a1");
  const ResidentRef unfinished = f.Create("a2").value();
  const auto full = f.Create("a3", kAnn, Nanos(0), 64);
  EXPECT_EQ(full.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(full.status().message().find("holds 8192 of its 8192"), std::string::npos)
      << full.status();
  EXPECT_TRUE(f.Has("a1")) << "nothing goes in vain";
  EXPECT_TRUE(f.Create("b", kBob).ok());
}

// Deleted, but read by somebody: the bytes are the caller's until then.
TEST(ResidentRoomTest, WhatIsStillReadCountsForItsOwner) {
  StoreFixture f(8, kPage);
  ResidentRef read = f.Create("a1").value();
  ASSERT_TRUE(f.store.Delete(kAnn, "a1").ok());
  EXPECT_EQ(f.Create("a2").status().code(), absl::StatusCode::kResourceExhausted);
  read.reset();
  EXPECT_TRUE(f.Create("a2").ok());
}

// Whose many small matrices use the numbers up loses one of those, not somebody's large one.
TEST(ResidentRoomTest, ForANumberGoesOneOfTheMany) {
  constexpr size_t kLimit = ResidentStore::kMaxMatrices;
  StoreFixture f(kLimit + 64);
  ASSERT_TRUE(f.Create("large", kBob, Nanos(0), 32 * 60).ok());
  f.store.Find(kBob, "large").value()->SetComplete();
  f.clock.Advance(Nanos(1));
  for (size_t i = 1; i < kLimit; ++i) f.Fill(std::to_string(i));
  f.clock.Advance(Nanos(1));
  f.Fill("onemore");
  EXPECT_TRUE(f.Has("large", kBob));
  EXPECT_TRUE(f.Has("onemore"));
  EXPECT_EQ(f.store.stats().matrices, static_cast<int64_t>(kLimit));
  f.Fill("small", kBob);
  EXPECT_TRUE(f.Has("small", kBob));
  EXPECT_TRUE(f.Has("large", kBob));
}

}  // namespace
}  // namespace tcgemm
