#include "server/http/histogram_quantile.h"

#include <gtest/gtest.h>
#include <prometheus/histogram.h>

#include <limits>
#include <utility>
#include <vector>

namespace tcgemm {
namespace {

using Histogram = prometheus::ClientMetric::Histogram;

// Of (upper bound, values in the bucket); the last bound is infinite.
Histogram Of(const std::vector<std::pair<double, uint64_t>>& buckets) {
  Histogram histogram;
  for (const auto& [bound, count] : buckets) {
    histogram.sample_count += count;
    histogram.bucket.push_back({.cumulative_count = histogram.sample_count, .upper_bound = bound});
  }
  return histogram;
}

constexpr double kInf = std::numeric_limits<double>::infinity();

TEST(HistogramQuantileTest, NothingSeenNothingSaid) {
  EXPECT_EQ(HistogramQuantile({}, 0.5), std::nullopt);
  EXPECT_EQ(HistogramQuantile(Of({{1, 0}, {kInf, 0}}), 0.5), std::nullopt);
}

TEST(HistogramQuantileTest, EvenlySpreadInABucket) {
  const Histogram histogram = Of({{1, 10}, {2, 0}, {4, 10}, {kInf, 0}});
  EXPECT_DOUBLE_EQ(*HistogramQuantile(histogram, 0.25), 0.5);
  EXPECT_DOUBLE_EQ(*HistogramQuantile(histogram, 0.5), 1);
  EXPECT_DOUBLE_EQ(*HistogramQuantile(histogram, 0.75), 3);
  EXPECT_DOUBLE_EQ(*HistogramQuantile(histogram, 1), 4);
}

TEST(HistogramQuantileTest, BeyondTheLastBoundItIsThatBound) {
  EXPECT_DOUBLE_EQ(*HistogramQuantile(Of({{1, 1}, {2, 0}, {kInf, 9}}), 0.5), 2);
  EXPECT_DOUBLE_EQ(*HistogramQuantile(Of({{1, 0}, {kInf, 1}}), 0.01), 1);
}

TEST(HistogramQuantileTest, OfARealHistogram) {
  prometheus::Histogram histogram({1, 2, 4, 8});
  for (int i = 1; i <= 8; ++i) histogram.Observe(i);  // 1 | 2 | 3 4 | 5 6 7 8
  const Histogram seen = histogram.Collect().histogram;
  EXPECT_DOUBLE_EQ(*HistogramQuantile(seen, 0.5), 4);
  EXPECT_DOUBLE_EQ(*HistogramQuantile(seen, 0.9), 4 + 4 * (7.2 - 4) / 4);
}

}  // namespace
}  // namespace tcgemm
