#include "server/http/gpu_metrics.h"

#include <optional>
#include <string>
#include <utility>

namespace tcgemm {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

ClientMetric GaugeOf(double value) {
  ClientMetric metric;
  metric.gauge.value = value;
  return metric;
}

ClientMetric CounterOf(uint64_t value) {
  ClientMetric metric;
  metric.counter.value = static_cast<double>(value);
  return metric;
}

ClientMetric With(const std::string& label, const std::string& value, ClientMetric metric) {
  metric.label.push_back({label, value});
  return metric;
}

class Families {
 public:
  void Add(const std::string& name, const std::string& help, MetricType type,
           std::vector<ClientMetric> metrics) {
    families_.push_back({name, help, type, std::move(metrics)});
  }
  // Left out when it is not known.
  void AddMeasured(const std::string& name, const std::string& help, std::optional<double> value) {
    if (value.has_value()) Add(name, help, MetricType::Gauge, {GaugeOf(*value)});
  }
  std::vector<MetricFamily> Take() { return std::move(families_); }

 private:
  std::vector<MetricFamily> families_;
};

void AddMeasurements(const GpuReading& reading, Families& families) {
  families.AddMeasured(
      "tcgemm_gpu_utilization_ratio",
      "Share of the last sample period in which some kernel ran on the GPU, 0 to 1",
      reading.utilization);
  families.AddMeasured("tcgemm_gpu_memory_used_bytes",
                       "GPU memory in use, of all processes and the driver, in bytes",
                       reading.memory_used_bytes);
  families.AddMeasured("tcgemm_gpu_memory_total_bytes", "GPU memory, in bytes",
                       reading.memory_total_bytes);
  families.AddMeasured("tcgemm_gpu_power_watts", "Power that the GPU draws, in watts",
                       reading.power_watts);
  families.AddMeasured("tcgemm_gpu_power_limit_watts", "Power limit in force, in watts",
                       reading.power_limit_watts);
  families.AddMeasured("tcgemm_gpu_sm_clock_hertz", "Clock of the multiprocessors, in hertz",
                       reading.sm_clock_hertz);
  families.AddMeasured("tcgemm_gpu_sm_clock_max_hertz", "The fastest that it can be, in hertz",
                       reading.max_sm_clock_hertz);
  families.AddMeasured("tcgemm_gpu_temperature_celsius", "Temperature of the GPU, in Celsius",
                       reading.temperature_celsius);
  if (!reading.throttle.has_value()) return;
  std::vector<ClientMetric> reasons;
  for (int i = 0; i < kThrottleReasonCount; ++i) {
    reasons.push_back(With("reason", ThrottleReasonName(static_cast<ThrottleReason>(i)),
                           GaugeOf((*reading.throttle)[i] ? 1 : 0)));
  }
  families.Add("tcgemm_gpu_throttle_active", "1 while this is why the clocks are held down",
               MetricType::Gauge, std::move(reasons));
}

}  // namespace

std::vector<MetricFamily> GpuFamilies(const GpuSnapshot& snapshot) {
  Families families;
  families.Add("tcgemm_gpu_telemetry_up",
               "1 while the GPU tells about itself; 0 without a GPU or NVML", MetricType::Gauge,
               {GaugeOf(snapshot.up ? 1 : 0)});
  AddMeasurements(snapshot.reading, families);
  families.Add("tcgemm_gpu_ecc_errors_total",
               "Memory errors since the server started, corrected or not", MetricType::Counter,
               {With("kind", "corrected", CounterOf(snapshot.ecc_corrected)),
                With("kind", "uncorrected", CounterOf(snapshot.ecc_uncorrected))});
  families.Add("tcgemm_gpu_xid_errors_total", "Xid errors of the GPU since the server started",
               MetricType::Counter, {CounterOf(snapshot.xid_errors)});
  families.Add("tcgemm_gpu_last_xid", "Number of the last of them; 0: there was none",
               MetricType::Gauge, {GaugeOf(static_cast<double>(snapshot.last_xid))});
  return families.Take();
}

}  // namespace tcgemm
