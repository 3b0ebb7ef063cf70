// Quantiles of a Prometheus histogram, as PromQL's histogram_quantile() estimates them.
#ifndef TCGEMM_SERVER_HTTP_HISTOGRAM_QUANTILE_H_
#define TCGEMM_SERVER_HTTP_HISTOGRAM_QUANTILE_H_

#include <prometheus/client_metric.h>

#include <optional>

namespace tcgemm {

// In a bucket values count as evenly spread; beyond the last finite bound a value counts as that
// bound. Nothing when the histogram has seen nothing. 0 < quantile ≤ 1.
std::optional<double> HistogramQuantile(const prometheus::ClientMetric::Histogram& histogram,
                                        double quantile);

}  // namespace tcgemm

#endif  // TCGEMM_SERVER_HTTP_HISTOGRAM_QUANTILE_H_
