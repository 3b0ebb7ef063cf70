#include "kernels/tensor_map_cache.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <vector>

namespace tcgemm {
namespace {

constexpr TensorMapKey kKey = {.address = 0x10000,
                               .columns = 64,
                               .rows = 100,
                               .row_stride_bytes = 128,
                               .box_columns = 64,
                               .box_rows = 128,
                               .swizzle = TensorMapSwizzle::k128Bytes,
                               .dtype = DType::kBf16};

// Numbers the maps that it makes, and notes for what.
class CountingEncoder {
 public:
  TensorMapEncoder Get() {
    return [this](const TensorMapKey& key) -> absl::StatusOr<TensorMap> {
      keys.push_back(key);
      if (!status.ok()) return status;
      TensorMap map = {};
      const auto number = static_cast<int32_t>(keys.size());
      std::memcpy(&map, &number, sizeof(number));
      return map;
    };
  }

  std::vector<TensorMapKey> keys;
  absl::Status status;
};

int NumberOf(const absl::StatusOr<const TensorMap*>& map) {
  int32_t number = 0;
  std::memcpy(&number, *map, sizeof(number));
  return number;
}

TensorMapKey KeyAt(uint64_t address) {
  TensorMapKey key = kKey;
  key.address = address;
  return key;
}

void ExpectCounts(const TensorMapCache& cache, int64_t hits, int64_t misses) {
  EXPECT_EQ(cache.counts().hits, hits);
  EXPECT_EQ(cache.counts().misses, misses);
}

TEST(TensorMapCacheTest, EncodesOnce) {
  CountingEncoder encoder;
  TensorMapCache cache(encoder.Get());
  EXPECT_EQ(NumberOf(cache.Get(kKey)), 1);
  ExpectCounts(cache, 0, 1);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(NumberOf(cache.Get(kKey)), 1);
  ExpectCounts(cache, 3, 1);
  ASSERT_EQ(encoder.keys.size(), 1u);
  EXPECT_EQ(encoder.keys[0], kKey);
}

// One set alone, so that the hash cannot tell keys apart: equality must.
TEST(TensorMapCacheTest, EveryFieldOfTheKeyMatters) {
  std::vector<TensorMapKey> others(9, kKey);
  others[0].address += 16;
  others[1].columns += 1;
  others[2].rows += 1;
  others[3].row_stride_bytes += 16;
  others[4].box_columns = 32;
  others[5].box_rows = 64;
  others[6].swizzle = TensorMapSwizzle::k64Bytes;
  others[7].dtype = DType::kFp32;
  others[8].box_slabs = 2;
  for (const TensorMapKey& other : others) {
    for (int sets : {1, 256}) {
      CountingEncoder encoder;
      TensorMapCache cache(encoder.Get(), sets);
      EXPECT_EQ(NumberOf(cache.Get(kKey)), 1);
      EXPECT_EQ(NumberOf(cache.Get(other)), 2) << other.ToString();
      EXPECT_EQ(NumberOf(cache.Get(kKey)), 1) << other.ToString();
      EXPECT_EQ(NumberOf(cache.Get(other)), 2) << other.ToString();
      ExpectCounts(cache, 2, 2);
    }
  }
}

TEST(TensorMapCacheTest, TheOldestOfASetGoesFirst) {
  CountingEncoder encoder;
  TensorMapCache cache(encoder.Get(), 1);
  constexpr uint64_t kWays = TensorMapCache::kWays;
  for (uint64_t i = 0; i < kWays; ++i) ASSERT_TRUE(cache.Get(KeyAt(i)).ok());
  for (uint64_t i = 0; i < kWays; ++i) EXPECT_EQ(NumberOf(cache.Get(KeyAt(i))), int(i) + 1);
  ExpectCounts(cache, kWays, kWays);
  EXPECT_EQ(NumberOf(cache.Get(KeyAt(kWays))), int(kWays) + 1);  // in the place of 0
  for (uint64_t i = 1; i <= kWays; ++i) EXPECT_EQ(NumberOf(cache.Get(KeyAt(i))), int(i) + 1);
  EXPECT_EQ(NumberOf(cache.Get(KeyAt(0))), int(kWays) + 2);  // in the place of 1
  EXPECT_EQ(NumberOf(cache.Get(KeyAt(1))), int(kWays) + 3);
  ExpectCounts(cache, 2 * kWays, kWays + 3);
}

// A zeroed key is a key like any other, not an empty place.
TEST(TensorMapCacheTest, EmptyPlacesMatchNothing) {
  CountingEncoder encoder;
  TensorMapCache cache(encoder.Get());
  EXPECT_EQ(NumberOf(cache.Get(TensorMapKey{})), 1);
  ExpectCounts(cache, 0, 1);
}

TEST(TensorMapCacheTest, ErrorsAreNotRemembered) {
  CountingEncoder encoder;
  TensorMapCache cache(encoder.Get());
  encoder.status = absl::InternalError("CUDA_ERROR_INVALID_VALUE");
  EXPECT_EQ(cache.Get(kKey).status(), encoder.status);
  encoder.status = absl::OkStatus();
  EXPECT_EQ(NumberOf(cache.Get(kKey)), 2);
  EXPECT_EQ(NumberOf(cache.Get(kKey)), 2);
  ExpectCounts(cache, 1, 2);
}

// The maps of a full ring of slots: three batches of 96 products with two maps each, at the
// distances that slabs have. Few may push each other out.
TEST(TensorMapCacheTest, HoldsTheMapsOfARingOfSlots) {
  CountingEncoder encoder;
  TensorMapCache cache(encoder.Get());
  constexpr int kMaps = 3 * 96 * 2;
  for (int round = 0; round < 10; ++round) {
    for (uint64_t i = 0; i < kMaps; ++i) {
      ASSERT_TRUE(cache.Get(KeyAt(0x7f00'0000'0000 + i * 128 * 128 * 2)).ok());
    }
  }
  EXPECT_LT(cache.counts().misses, kMaps + kMaps / 4);
  EXPECT_EQ(cache.counts().hits + cache.counts().misses, 10 * kMaps);
}

}  // namespace
}  // namespace tcgemm
