#include "kernels/tensor_map_cache.h"

#include <utility>

#include "base/status_macros.h"

namespace tcgemm {
namespace {

uint64_t Mix(uint64_t hash, uint64_t value) {
  // Folding the high half of a product down mixes all bits; the constant is that of splitmix64.
  __extension__ using Uint128 = unsigned __int128;
  const Uint128 product = static_cast<Uint128>(hash ^ value) * 0x9e3779b97f4a7c15u;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

uint64_t Hash(const TensorMapKey& key) {
  uint64_t hash = Mix(0x243f6a8885a308d3u, key.address);
  hash = Mix(hash, key.columns);
  hash = Mix(hash, key.rows);
  hash = Mix(hash, key.row_stride_bytes);
  hash = Mix(hash, uint64_t{key.box_columns} << 48 | uint64_t{key.box_slabs} << 32 | key.box_rows);
  return Mix(hash, static_cast<uint64_t>(key.swizzle) << 32 | static_cast<uint64_t>(key.dtype));
}

}  // namespace

TensorMapCache::TensorMapCache(TensorMapEncoder encoder, int set_count)
    : encoder_(std::move(encoder)),
      set_mask_(static_cast<uint64_t>(set_count) - 1),
      sets_(std::make_unique<Set[]>(set_count)) {}

absl::StatusOr<const TensorMap*> TensorMapCache::Get(const TensorMapKey& key) {
  Set& set = sets_[Hash(key) & set_mask_];
  for (int way = 0; way < kWays; ++way) {
    if (set.used[way] && set.keys[way] == key) {
      ++counts_.hits;
      return &set.maps[way];
    }
  }
  ++counts_.misses;
  TCGEMM_ASSIGN_OR_RETURN(const TensorMap map, encoder_(key));
  const int way = set.oldest;
  set.oldest = static_cast<uint8_t>((way + 1) % kWays);
  set.keys[way] = key;
  set.maps[way] = map;
  set.used[way] = true;
  return &set.maps[way];
}

}  // namespace tcgemm
