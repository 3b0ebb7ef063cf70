#include "client/load/latency_histogram.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>

namespace tcgemm::client {
namespace {

constexpr int kSubBits = 8;
constexpr uint64_t kSubBuckets = uint64_t{1} << kSubBits;

// Values below 2·kSubBuckets have a bucket each; above, those that agree in their top kSubBits + 1
// bits share one.
int ShiftOf(uint64_t value) { return std::max<int>(0, std::bit_width(value) - kSubBits - 1); }

size_t BucketOf(uint64_t value) {
  const int shift = ShiftOf(value);
  return static_cast<size_t>(shift) * kSubBuckets + (value >> shift);
}

uint64_t LargestIn(size_t bucket) {
  if (bucket < 2 * kSubBuckets) return bucket;
  const uint64_t shift = bucket / kSubBuckets - 1;
  return ((bucket - shift * kSubBuckets + 1) << shift) - 1;
}

}  // namespace

void LatencyHistogram::Record(Nanos value) {
  value = std::max(value, Nanos(0));
  const size_t bucket = BucketOf(static_cast<uint64_t>(value.count()));
  if (bucket >= buckets_.size()) buckets_.resize(bucket + 1);
  ++buckets_[bucket];
  ++count_;
  max_ = std::max(max_, value);
}

Nanos LatencyHistogram::Percentile(double percent) const {
  // 99.9 % of 1000 values is value 999, though 0.999·1000 is a little more than that in binary.
  constexpr double kSlack = 1e-9;
  const double share = percent / 100 * static_cast<double>(count_);
  const int64_t rank =
      std::clamp<int64_t>(std::llround(std::ceil(share * (1 - kSlack))), 1, count_);
  int64_t seen = 0;
  for (size_t i = 0; i < buckets_.size(); ++i) {
    seen += buckets_[i];
    if (seen >= rank) return std::min(max_, Nanos(static_cast<int64_t>(LargestIn(i))));
  }
  return max_;
}

}  // namespace tcgemm::client
