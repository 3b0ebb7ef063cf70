#include "server/http/histogram_quantile.h"

#include <cmath>
#include <cstdint>

namespace tcgemm {

std::optional<double> HistogramQuantile(const prometheus::ClientMetric::Histogram& histogram,
                                        double quantile) {
  const auto& buckets = histogram.bucket;
  if (buckets.empty() || buckets.back().cumulative_count == 0) return std::nullopt;
  const double rank = quantile * static_cast<double>(buckets.back().cumulative_count);
  uint64_t below = 0;
  double lower = 0;
  for (const auto& bucket : buckets) {
    if (std::isinf(bucket.upper_bound)) break;
    if (static_cast<double>(bucket.cumulative_count) >= rank) {
      const auto inside = static_cast<double>(bucket.cumulative_count - below);
      return lower + (bucket.upper_bound - lower) * (rank - static_cast<double>(below)) / inside;
    }
    below = bucket.cumulative_count;
    lower = bucket.upper_bound;
  }
  return lower;
}

}  // namespace tcgemm
