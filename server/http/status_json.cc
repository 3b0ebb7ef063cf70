#include "server/http/status_json.h"

#include <cmath>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "server/http/histogram_quantile.h"

namespace tcgemm {
namespace {

using Json = nlohmann::ordered_json;
using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

// Counts without a fraction; what JSON has no number for is null.
Json Number(double value) {
  constexpr double kExact = 9007199254740992;  // 2^53
  if (!std::isfinite(value)) return nullptr;
  if (std::fabs(value) < kExact && value == std::trunc(value)) return static_cast<int64_t>(value);
  return value;
}

Json Number(std::optional<double> value) { return value.has_value() ? Number(*value) : nullptr; }

std::string LabelOf(const ClientMetric& metric, std::string_view name) {
  for (const ClientMetric::Label& label : metric.label) {
    if (label.name == name) return label.value;
  }
  return "";
}

double ValueOf(const MetricFamily& family, const ClientMetric& metric) {
  return family.type == MetricType::Counter ? metric.counter.value : metric.gauge.value;
}

// The samples by name.
class Samples {
 public:
  explicit Samples(const std::vector<MetricFamily>& families) {
    for (const MetricFamily& family : families) families_[family.name] = &family;
  }

  const MetricFamily& Family(const std::string& name) const {
    static const MetricFamily kNone;
    const auto it = families_.find(name);
    return it == families_.end() ? kNone : *it->second;
  }
  // All series added up.
  double Sum(const std::string& name) const {
    double sum = 0;
    const MetricFamily& family = Family(name);
    for (const ClientMetric& metric : family.metric) sum += ValueOf(family, metric);
    return sum;
  }
  Json Value(const std::string& name) const { return Number(Sum(name)); }
  std::string Label(const std::string& name, std::string_view label) const {
    const MetricFamily& family = Family(name);
    return family.metric.empty() ? "" : LabelOf(family.metric.front(), label);
  }
  // {label's value: sample}.
  Json ByLabel(const std::string& name, std::string_view label) const {
    Json values = Json::object();
    const MetricFamily& family = Family(name);
    for (const ClientMetric& metric : family.metric) {
      values[LabelOf(metric, label)] = Number(ValueOf(family, metric));
    }
    return values;
  }

 private:
  std::map<std::string, const MetricFamily*> families_;
};

std::string ReasonFor(std::string_view readiness) {
  if (readiness == "draining") {
    return "it is shutting down: calls under way may finish, new ones go elsewhere";
  }
  if (readiness == "starting") return "its self-test and --preload are not done yet";
  if (readiness == "device lost") return "its device is lost or hangs: the process is about to end";
  return "";
}

// {method: {code: calls}}, without the codes that no call ended with.
Json Requests(const Samples& samples) {
  Json methods = Json::object();
  const MetricFamily& family = samples.Family("tcgemm_requests_total");
  for (const ClientMetric& metric : family.metric) {
    Json& codes = methods[LabelOf(metric, "method")];
    if (codes.is_null()) codes = Json::object();
    if (metric.counter.value > 0) codes[LabelOf(metric, "code")] = Number(metric.counter.value);
  }
  return {{"total", samples.Value("tcgemm_requests_total")}, {"by_method", std::move(methods)}};
}

Json Times(const ClientMetric::Histogram& histogram) {
  return {{"count", histogram.sample_count},
          {"sum", Number(histogram.sample_sum)},
          {"p50", Number(HistogramQuantile(histogram, 0.5))},
          {"p90", Number(HistogramQuantile(histogram, 0.9))},
          {"p99", Number(HistogramQuantile(histogram, 0.99))}};
}

Json Latency(const Samples& samples) {
  Json bounds = Json::array();
  Json methods = Json::object();
  for (const ClientMetric& metric : samples.Family("tcgemm_request_duration_seconds").metric) {
    Json times = Times(metric.histogram);
    Json cumulative = Json::array();
    bounds = Json::array();  // the same for all
    for (const ClientMetric::Bucket& bucket : metric.histogram.bucket) {
      cumulative.push_back(bucket.cumulative_count);
      if (std::isfinite(bucket.upper_bound)) bounds.push_back(bucket.upper_bound);
    }
    times["cumulative"] = std::move(cumulative);
    methods[LabelOf(metric, "method")] = std::move(times);
  }
  return {{"bounds", std::move(bounds)}, {"by_method", std::move(methods)}};
}

Json Stages(const Samples& samples) {
  Json stages = Json::object();
  for (const ClientMetric& metric : samples.Family("tcgemm_stage_duration_seconds").metric) {
    stages[LabelOf(metric, "stage")] = Times(metric.histogram);
  }
  return stages;
}

Json Batches(const Samples& samples) {
  ClientMetric::Histogram sizes;
  const MetricFamily& family = samples.Family("tcgemm_batch_size");
  if (!family.metric.empty()) sizes = family.metric.front().histogram;
  // Without a launch 0 / 0, which is null.
  return {{"launches", sizes.sample_count},
          {"requests", Number(sizes.sample_sum)},
          {"mean", Number(sizes.sample_sum / static_cast<double>(sizes.sample_count))},
          {"coalesced", samples.Value("tcgemm_coalesced_requests_total")}};
}

Json Pools(const Samples& samples) {
  Json pools = Json::object();
  for (const ClientMetric& metric : samples.Family("tcgemm_pool_bytes").metric) {
    pools[LabelOf(metric, "pool")][LabelOf(metric, "state")] = Number(metric.gauge.value);
  }
  return pools;
}

void AddIdentity(const Samples& samples, const StatusFacts& facts, Json& status) {
  const double now = static_cast<double>(facts.unix_ms) / 1e3;
  const double start = samples.Sum("process_start_time_seconds");
  for (const char* name : {"version", "commit", "cuda", "backend"}) {
    status[name] = samples.Label("tcgemm_build_info", name);
  }
  status["time"] = Number(now);
  status["start_time"] = Number(start);
  status["uptime_seconds"] = Number(now - start);
  status["device"] = {{"name", samples.Label("tcgemm_device_healthy", "device")},
                      {"healthy", samples.Sum("tcgemm_device_healthy") > 0}};
  status["readiness"] = facts.readiness;
  status["reason"] = ReasonFor(facts.readiness);
  status["debug_requests"] = facts.debug_requests;
}

}  // namespace

std::string StatusJson(const std::vector<MetricFamily>& families, const StatusFacts& facts) {
  const Samples samples(families);
  const double flops = samples.Sum("tcgemm_flops_total");
  const double kernel_seconds = samples.Sum("tcgemm_kernel_seconds_total");
  Json status;
  AddIdentity(samples, facts, status);
  status["requests"] = Requests(samples);
  status["inflight"] = samples.Value("tcgemm_inflight_requests");
  status["rejected"] = samples.ByLabel("tcgemm_rejected_total", "reason");
  status["cancelled"] = samples.ByLabel("tcgemm_cancelled_total", "stage");
  status["latency_seconds"] = Latency(samples);
  status["stage_seconds"] = Stages(samples);
  status["queue"] = {{"depth", samples.Value("tcgemm_queue_depth")},
                     {"bytes", samples.Value("tcgemm_queue_bytes")}};
  status["launches"] = samples.ByLabel("tcgemm_launches_total", "kernel");
  status["batch"] = Batches(samples);
  status["flops"] = Number(flops);
  status["kernel_seconds"] = Number(kernel_seconds);
  status["tflops"] = Number(flops / kernel_seconds / 1e12);  // null without a launch
  status["transfer_bytes"] = samples.ByLabel("tcgemm_transfer_bytes_total", "direction");
  status["pools"] = Pools(samples);
  status["resident"] = {{"matrices", samples.Value("tcgemm_resident_matrices")},
                        {"bytes", samples.Value("tcgemm_resident_bytes")}};
  status["verification"] = samples.ByLabel("tcgemm_verification_total", "result");
  status["device_errors"] = samples.ByLabel("tcgemm_device_errors_total", "kind");
  status["nonfinite_outputs"] = samples.Value("tcgemm_nonfinite_outputs_total");
  status["certificate_expiry"] = samples.Value("tcgemm_certificate_expiry_timestamp_seconds");
  status["process"] = {{"resident_memory_bytes", samples.Value("process_resident_memory_bytes")},
                       {"cpu_seconds", samples.Value("process_cpu_seconds_total")},
                       {"open_fds", samples.Value("process_open_fds")}};
  return status.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace tcgemm
