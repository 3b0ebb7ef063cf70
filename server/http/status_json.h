// The JSON of /api/status. docs/OPERATIONS.md explains its fields.
#ifndef TCGEMM_SERVER_HTTP_STATUS_JSON_H_
#define TCGEMM_SERVER_HTTP_STATUS_JSON_H_

#include <prometheus/metric_family.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tcgemm {

// What no metric says.
struct StatusFacts {
  std::string_view readiness;   // Metrics::readiness
  bool debug_requests = false;  // whether /debug/requests is served
  int64_t unix_ms = 0;          // when `families` were read
};

// One object, of the samples that /metrics would show: Metrics::Collect.
std::string StatusJson(const std::vector<prometheus::MetricFamily>& families,
                       const StatusFacts& facts);

}  // namespace tcgemm

#endif  // TCGEMM_SERVER_HTTP_STATUS_JSON_H_
