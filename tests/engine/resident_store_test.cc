#include "server/engine/resident_store.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <thread>
#include <vector>

namespace tcgemm {
namespace {

using absl::StatusCode;

const Caller kAnn{.identity = "uid:1"};
const Caller kBob{.identity = "uid:2"};

constexpr size_t kPage = 4096;

// Room for `pages` matrices of 4 KiB.
struct Fixture {
  explicit Fixture(size_t pages = 4)
      : memory(pages * kPage),
        store(MemoryBlock(memory.data(), memory.size(), [](void*) {}), 64, &clock, [this](auto& b) {
          std::fill(std::begin(b), std::end(b), ++random);
          return absl::OkStatus();
        }) {}

  // 32 rows of 64 bf16: 4 KiB.
  absl::StatusOr<ResidentRef> Create(const std::string& name, const Caller& caller = kAnn,
                                     Nanos ttl = Nanos(0), int64_t rows = 32) {
    return store.Create(caller, {.name = name, .rows = rows, .cols = 10, .ttl = ttl});
  }
  // Complete, and let go.
  void Fill(const std::string& name, const Caller& caller = kAnn) {
    const auto matrix = Create(name, caller);
    ASSERT_TRUE(matrix.ok()) << matrix.status();
    const auto missing = (*matrix)->BeginWrite({0, 640});
    (*matrix)->EndWrite(*missing, true);
  }
  bool Has(const std::string& name, const Caller& caller = kAnn) {
    return store.Find(caller, name).ok();
  }

  uint8_t random = 0;
  std::vector<std::byte> memory;
  FakeClock clock;
  ResidentStore store;
};

TEST(ResidentStoreTest, NamesAreEachCallersOwn) {
  Fixture f;
  const ResidentRef ann = f.Create("w").value();
  const ResidentRef bob = f.Create("w", kBob).value();
  EXPECT_NE(ann, bob);
  EXPECT_EQ(f.store.Find(kAnn, "w").value(), ann);
  EXPECT_EQ(f.store.Find(kBob, "w").value(), bob);
  EXPECT_EQ(f.Create("w").status().code(), StatusCode::kAlreadyExists);
  EXPECT_TRUE(f.store.Delete(kAnn, "w").ok());
  EXPECT_EQ(f.store.Find(kAnn, "w").status().code(), StatusCode::kNotFound);
  EXPECT_TRUE(f.Has("w", kBob));
  EXPECT_EQ(f.store.List(kAnn).size(), 0u);
  EXPECT_EQ(f.store.List(kBob).size(), 1u);
}

TEST(ResidentStoreTest, RowsArePaddedToThePitch) {
  Fixture f;
  const ResidentRef matrix = f.Create("w").value();
  EXPECT_EQ(matrix->view().ld, 64);
  EXPECT_EQ(matrix->memory_bytes(), kPage);
  EXPECT_EQ(f.store.stats().bytes, kPage);
  EXPECT_EQ(f.store.stats().matrices, 1);
}

TEST(ResidentStoreTest, WithoutANameTheHandleIsRandom) {
  Fixture f;
  const ResidentRef first = f.Create("").value();
  EXPECT_EQ(first->identity().handle, "01010101010101010101010101010101");
  EXPECT_EQ(first->identity().name, "");
  EXPECT_EQ(f.Create("").value()->identity().handle, "02020202020202020202020202020202");
  uint8_t bytes[2][16] = {};
  ASSERT_TRUE(ResidentStore::SystemRandom()(bytes[0]).ok());
  ASSERT_TRUE(ResidentStore::SystemRandom()(bytes[1]).ok());
  EXPECT_FALSE(std::equal(std::begin(bytes[0]), std::end(bytes[0]), std::begin(bytes[1])));
}

TEST(ResidentStoreTest, RefusesBadNames) {
  Fixture f;
  for (const std::string& name :
       {std::string("a b"), std::string("a\0", 2), std::string("\xc3\xa4"), std::string(129, 'a'),
        std::string("@x"), std::string(32, 'f')}) {
    EXPECT_EQ(f.Create(name).status().code(), StatusCode::kInvalidArgument) << name;
  }
  EXPECT_TRUE(f.Create(std::string(128, 'a')).ok());
  EXPECT_TRUE(f.Create("layer.0/q_proj:w-1").ok());
}

TEST(ResidentStoreTest, PreloadedOnesAreReadByAllAndDeletedByNone) {
  Fixture f;
  ASSERT_TRUE(f.store.CreatePreloaded({.name = "w", .rows = 1, .cols = 1}).ok());
  EXPECT_TRUE(f.Has("w"));
  EXPECT_TRUE(f.Has("w", kBob));
  EXPECT_EQ(f.store.Delete(kAnn, "w").code(), StatusCode::kPermissionDenied);
  EXPECT_EQ(f.Create("w").status().code(), StatusCode::kAlreadyExists);
  EXPECT_EQ(f.store.CreatePreloaded({.name = "", .rows = 1, .cols = 1}).status().code(),
            StatusCode::kInvalidArgument);
}

TEST(ResidentStoreTest, TimeToLiveEnds) {
  Fixture f;
  ASSERT_TRUE(f.Create("w", kAnn, std::chrono::seconds(5)).ok());
  f.clock.Advance(std::chrono::seconds(5) - Nanos(1));
  EXPECT_TRUE(f.Has("w")) << "a use does not prolong it";
  f.clock.Advance(Nanos(1));
  EXPECT_FALSE(f.Has("w"));
  EXPECT_EQ(f.store.pool().used_bytes(), 0u);
  ASSERT_TRUE(f.Create("w", kAnn, Nanos::max()).ok());
  f.clock.Advance(std::chrono::hours(1));
}

TEST(ResidentStoreTest, WhatHasExpiredIsNotListedNorDeletedNorInTheWay) {
  Fixture f;
  ASSERT_TRUE(f.Create("w", kAnn, Nanos(5)).ok());
  f.clock.Advance(Nanos(5));
  EXPECT_EQ(f.store.Delete(kAnn, "w").code(), StatusCode::kNotFound);
  ASSERT_TRUE(f.Create("w", kAnn, Nanos(5)).ok());
  f.clock.Advance(Nanos(5));
  EXPECT_TRUE(f.store.List(kAnn).empty());
  ASSERT_TRUE(f.Create("w", kAnn, Nanos(5)).ok());
  f.clock.Advance(Nanos(5));
  EXPECT_TRUE(f.Create("w").ok());
}

TEST(ResidentStoreTest, EvictsTheLeastRecentlyUsed) {
  Fixture f(3);
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

TEST(ResidentStoreTest, KeepsWhatIsUsedUnfinishedOrPreloaded) {
  Fixture f(3);
  f.Fill("used");
  const ResidentRef used = f.store.Find(kAnn, "used").value();
  ASSERT_TRUE(f.Create("unfinished").ok());
  const ResidentRef preloaded =
      f.store.CreatePreloaded({.name = "all", .rows = 32, .cols = 10}).value();
  preloaded->SetComplete();
  const auto full = f.Create("more");
  EXPECT_EQ(full.status().code(), StatusCode::kResourceExhausted);
  EXPECT_NE(full.status().message().find("needs 4096 bytes; 12288 of the 12288"), std::string::npos)
      << full.status();
}

TEST(ResidentStoreTest, EvictsNothingInVain) {
  Fixture f(3);
  f.Fill("a");
  ASSERT_TRUE(f.Create("unfinished").ok());
  EXPECT_EQ(f.Create("large", kAnn, Nanos(0), 96).status().code(), StatusCode::kResourceExhausted);
  EXPECT_TRUE(f.Has("a"));
  EXPECT_TRUE(f.Create("fits", kAnn, Nanos(0), 32).ok());
  EXPECT_TRUE(f.Has("a"));
}

// Many small matrices of one caller must not keep others out for good.
TEST(ResidentStoreTest, TheLimitOnTheirNumberEvictsToo) {
  constexpr size_t kLimit = ResidentStore::kMaxMatrices;
  Fixture f(kLimit + 1);
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

TEST(ResidentStoreTest, ALargerThanTheBudgetNamesBoth) {
  Fixture f;
  f.Fill("a");
  const auto large = f.Create("large", kAnn, Nanos(0), int64_t{1} << 30);
  EXPECT_EQ(large.status().code(), StatusCode::kResourceExhausted);
  EXPECT_NE(large.status().message().find("137438953472 bytes"), std::string::npos);
  EXPECT_NE(large.status().message().find("16384 resident (--resident-bytes)"), std::string::npos);
  EXPECT_TRUE(f.Has("a"));
  const int64_t most = (int64_t{1} << 31) - 1;
  EXPECT_EQ(
      f.store.Create(kAnn, {.rows = most, .cols = most, .dtype = DType::kFp32}).status().code(),
      StatusCode::kResourceExhausted);
}

TEST(ResidentStoreTest, MemoryReturnsWithTheLastReference) {
  Fixture f(1);
  ResidentRef matrix = f.Create("w").value();
  ASSERT_TRUE(f.store.Delete(kAnn, "w").ok());
  EXPECT_EQ(f.store.stats().matrices, 0);
  EXPECT_EQ(f.store.pool().used_bytes(), kPage);
  EXPECT_EQ(f.Create("w").status().code(), StatusCode::kResourceExhausted);
  matrix.reset();
  EXPECT_EQ(f.store.pool().used_bytes(), 0u);
  EXPECT_TRUE(f.Create("w").ok());
}

TEST(ResidentStoreTest, DropsOnlyTheMatrixItWasGiven) {
  Fixture f;
  const ResidentRef old = f.Create("w").value();
  ASSERT_TRUE(f.store.Delete(kAnn, "w").ok());
  const ResidentRef fresh = f.Create("w").value();
  f.store.Drop(old);
  EXPECT_EQ(f.store.Find(kAnn, "w").value(), fresh);
  EXPECT_FALSE(f.store.Touch(old));
  f.store.Drop(fresh);
  EXPECT_FALSE(f.Has("w"));
}

TEST(ResidentStoreTest, AnAbandonedUploadGoes) {
  Fixture f;
  ASSERT_TRUE(f.Create("w").ok());
  f.clock.Advance(ResidentStore::kUnfinishedLife - Nanos(1));
  ResidentRef joined = f.store.Find(kAnn, "w").value();
  f.clock.Advance(ResidentStore::kUnfinishedLife);
  EXPECT_EQ(f.store.stats().matrices, 1) << "a stream is at it";
  EXPECT_TRUE(f.store.Touch(joined));
  joined.reset();
  EXPECT_EQ(f.store.stats().matrices, 1);
  f.clock.Advance(ResidentStore::kUnfinishedLife);
  EXPECT_EQ(f.store.stats().matrices, 0);
}

TEST(ResidentStoreTest, ManyThreadsAtOnce) {
  Fixture f(8);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&f, t] {
      const std::string name = "m" + std::to_string(t % 2);
      for (int i = 0; i < 500; ++i) {
        const auto made = f.store.Create(kAnn, {.name = name, .rows = 32, .cols = 10});
        if (made.ok()) (*made)->SetComplete();
        const auto found = f.store.Find(kAnn, name);
        if (i % 3 == 0) f.store.Delete(kAnn, name).IgnoreError();
        f.store.stats();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  f.store.Delete(kAnn, "m0").IgnoreError();
  f.store.Delete(kAnn, "m1").IgnoreError();
  EXPECT_EQ(f.store.pool().used_bytes(), 0u);
}

}  // namespace
}  // namespace tcgemm
