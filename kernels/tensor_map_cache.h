// Remembers encoded tensor maps: a hit costs less than the 74 ns of an encode.
//
// Threads: none. A cache belongs to one stream, and so to one thread at a time; it has no lock.
// Memory: fixed when it is made. A lookup allocates nothing.
#ifndef TCGEMM_KERNELS_TENSOR_MAP_CACHE_H_
#define TCGEMM_KERNELS_TENSOR_MAP_CACHE_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/device.h"
#include "kernels/gpu_problem.h"
#include "kernels/tensor_map.h"

namespace tcgemm {

// The map of a key, or why there is none. Called for misses only.
using TensorMapEncoder = std::function<absl::StatusOr<TensorMap>(const TensorMapKey&)>;

// Set-associative, the oldest of a set goes first: a key may take any of kWays places.
class TensorMapCache {
 public:
  static constexpr int kWays = 4;

  // `set_count` is a power of two, ≥ 1. 176 bytes a place.
  explicit TensorMapCache(TensorMapEncoder encoder, int set_count = 512);

  // Valid until the next Get. An encoder's error is returned and not remembered; it counts as a
  // miss.
  absl::StatusOr<const TensorMap*> Get(const TensorMapKey& key);

  const TensorMapCounts& counts() const { return counts_; }

 private:
  // Keys of a set lie together: a lookup reads them and then one map.
  struct Set {
    TensorMap maps[kWays];
    TensorMapKey keys[kWays];
    bool used[kWays] = {};
    uint8_t oldest = 0;
  };

  const TensorMapEncoder encoder_;
  const uint64_t set_mask_;
  const std::unique_ptr<Set[]> sets_;
  TensorMapCounts counts_;
};

}  // namespace tcgemm

#endif  // TCGEMM_KERNELS_TENSOR_MAP_CACHE_H_
