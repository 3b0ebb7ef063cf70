// Durations, counted in buckets: percentiles of any number of calls in fixed memory.
//
// The layout is HdrHistogram's (http://hdrhistogram.org): each power of two is split into 2^8 equal
// buckets, so a bucket is at most 1/256 of its values wide. Percentiles are the upper end of their
// bucket, and never beyond the largest value: too large by less than 0.4 %, never too small. Values
// below 512 ns and the maximum are exact.
#ifndef TCGEMM_CLIENT_LOAD_LATENCY_HISTOGRAM_H_
#define TCGEMM_CLIENT_LOAD_LATENCY_HISTOGRAM_H_

#include <cstdint>
#include <vector>

#include "base/clock.h"

namespace tcgemm::client {

// Copyable. Not thread-safe. At most some 110 KiB.
class LatencyHistogram {
 public:
  // Below zero counts as zero.
  void Record(Nanos value);
  int64_t count() const { return count_; }
  Nanos max() const { return max_; }
  // The smallest value that at least `percent` (above 0, up to 100) of the values do not exceed
  // (nearest rank), as above. Zero when there are none.
  Nanos Percentile(double percent) const;

 private:
  std::vector<int64_t> buckets_;  // grows to the largest value seen
  int64_t count_ = 0;
  Nanos max_{0};
};

}  // namespace tcgemm::client

#endif  // TCGEMM_CLIENT_LOAD_LATENCY_HISTOGRAM_H_
