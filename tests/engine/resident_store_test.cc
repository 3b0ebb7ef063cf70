#include "server/engine/resident_store.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <thread>
#include <vector>

#include "tests/engine/store_fixture.h"

namespace tcgemm {
namespace {

using absl::StatusCode;

TEST(ResidentStoreTest, NamesAreEachCallersOwn) {
  StoreFixture f;
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
  StoreFixture f;
  const ResidentRef matrix = f.Create("w").value();
  EXPECT_EQ(matrix->view().ld, 64);
  EXPECT_EQ(matrix->memory_bytes(), kPage);
  EXPECT_EQ(f.store.stats().bytes, kPage);
  EXPECT_EQ(f.store.stats().matrices, 1);
}

TEST(ResidentStoreTest, WithoutANameTheHandleIsRandom) {
  StoreFixture f;
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
  StoreFixture f;
  for (const std::string& name :
       {std::string("a b"), std::string("a\0", 2), std::string("\xc3\xa4"), std::string(129, 'a'),
        std::string("@x"), std::string(32, 'f')}) {
    EXPECT_EQ(f.Create(name).status().code(), StatusCode::kInvalidArgument) << name;
  }
  EXPECT_TRUE(f.Create(std::string(128, 'a')).ok());
  EXPECT_TRUE(f.Create("layer.0/q_proj:w-1").ok());
}

TEST(ResidentStoreTest, PreloadedOnesAreReadByAllAndDeletedByNone) {
  StoreFixture f;
  ASSERT_TRUE(f.store.CreatePreloaded({.name = "w", .rows = 1, .cols = 1}).ok());
  EXPECT_TRUE(f.Has("w"));
  EXPECT_TRUE(f.Has("w", kBob));
  EXPECT_EQ(f.store.Delete(kAnn, "w").code(), StatusCode::kPermissionDenied);
  EXPECT_EQ(f.Create("w").status().code(), StatusCode::kAlreadyExists);
  EXPECT_EQ(f.store.CreatePreloaded({.name = "", .rows = 1, .cols = 1}).status().code(),
            StatusCode::kInvalidArgument);
}

TEST(ResidentStoreTest, TimeToLiveEnds) {
  StoreFixture f;
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
  StoreFixture f;
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

TEST(ResidentStoreTest, ALargerThanTheBudgetNamesBoth) {
  StoreFixture f;
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
  StoreFixture f(1);
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
  StoreFixture f;
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
  StoreFixture f;
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

TEST(ResidentStoreTest, AnUploadThatIsHeldIsLookedAtAgain) {
  StoreFixture f;
  ResidentRef held = f.Create("w").value();
  f.clock.Advance(ResidentStore::kUnfinishedLife);
  EXPECT_EQ(f.store.stats().matrices, 1);
  held.reset();
  f.clock.Advance(ResidentStore::kUnfinishedLife / 10);
  EXPECT_EQ(f.store.stats().matrices, 0);
}

TEST(ResidentStoreTest, ACompleteOneGoesWithItsTimeAlone) {
  StoreFixture f;
  ASSERT_TRUE(f.Create("w", kAnn, 3 * ResidentStore::kUnfinishedLife).ok());
  f.store.Find(kAnn, "w").value()->SetComplete();
  f.Fill("forgood");
  f.clock.Advance(2 * ResidentStore::kUnfinishedLife);
  EXPECT_EQ(f.store.stats().matrices, 2);
  f.clock.Advance(ResidentStore::kUnfinishedLife);
  EXPECT_EQ(f.store.stats().matrices, 1);
}

// Counted in steps: none of the matrices that are there costs the next one anything.
TEST(ResidentStoreTest, ExpiryLooksAtNothingThatIsNotDue) {
  constexpr int kMatrices = ResidentStore::kMaxMatrices;
  StoreFixture f(kMatrices);
  for (int i = 0; i < kMatrices; ++i) {
    ASSERT_TRUE(f.Create(std::to_string(i), kAnn, std::chrono::hours(1)).ok());
  }
  EXPECT_LE(f.store.expiry_looks(), kMatrices);
  f.clock.Advance(std::chrono::hours(1));
  EXPECT_TRUE(f.Create("w").ok());
  EXPECT_LE(f.store.expiry_looks(), 2 * kMatrices + 2);
  EXPECT_EQ(f.store.stats().matrices, 1);
}

TEST(ResidentStoreTest, PagesHoldEachOnce) {
  StoreFixture f(16);
  for (const char* name : {"c", "a", "e"}) f.Fill(name);
  f.Fill("b", kBob);
  for (const char* name : {"d", "b"}) {
    ASSERT_TRUE(f.store.CreatePreloaded({.name = name, .rows = 32, .cols = 10}).ok());
  }
  for (const size_t limit : {1, 2, 3, 5, 6}) {
    std::string all;
    std::string after;
    for (bool more = true; more;) {
      const ResidentPage page = f.store.ListPage(kAnn, after, limit);
      EXPECT_LE(page.matrices.size(), limit);
      for (const ResidentRef& matrix : page.matrices) all += matrix->identity().handle;
      more = page.more;
      EXPECT_TRUE(!more || page.matrices.size() == limit);
      after = page.matrices.back()->identity().handle;
    }
    EXPECT_EQ(all, "abcde") << limit;
  }
  EXPECT_EQ(f.store.ListPage(kAnn, "e", 1).matrices.size(), 0u);
  EXPECT_EQ(f.store.ListPage(kAnn, "cc", 9).matrices.size(), 2u) << "after one that has gone";
}

TEST(ResidentStoreTest, ACreationKeyMeansTheSameMatrix) {
  StoreFixture f;
  const ResidentSpec spec{.name = "w", .rows = 32, .cols = 10, .creation_key = "k"};
  const ResidentRef made = f.store.Create(kAnn, spec).value();
  EXPECT_EQ(f.store.Create(kAnn, spec).value(), made);
  const auto code = [&](auto change) {
    ResidentSpec other = spec;
    change(other);
    return f.store.Create(kAnn, other).status().code();
  };
  EXPECT_EQ(code([](ResidentSpec& s) { s.creation_key = "l"; }), StatusCode::kAlreadyExists);
  EXPECT_EQ(code([](ResidentSpec& s) { s.creation_key = ""; }), StatusCode::kAlreadyExists);
  EXPECT_EQ(code([](ResidentSpec& s) { s.rows = 31; }), StatusCode::kAlreadyExists);
  EXPECT_EQ(code([](ResidentSpec& s) { s.cols = 9; }), StatusCode::kAlreadyExists);
  EXPECT_EQ(code([](ResidentSpec& s) { s.dtype = DType::kFp32; }), StatusCode::kAlreadyExists);
  EXPECT_NE(f.store.Create(kBob, spec).value(), made);
  // Without keys two makers stay two.
  ASSERT_TRUE(f.Create("x").ok());
  EXPECT_EQ(f.Create("x").status().code(), StatusCode::kAlreadyExists);
}

TEST(ResidentStoreTest, GenerationsDiffer) {
  StoreFixture f;
  const uint64_t first = f.Create("w").value()->identity().generation;
  ASSERT_TRUE(f.store.Delete(kAnn, "w").ok());
  const uint64_t second = f.Create("w").value()->identity().generation;
  EXPECT_NE(first, 0u);
  EXPECT_NE(first, second);
  EXPECT_NE(StoreFixture().Create("w").value()->identity().generation, first);
}

TEST(ResidentStoreTest, ManyThreadsAtOnce) {
  StoreFixture f(8);
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
