#include "server/http/metrics.h"

#include <prometheus/text_serializer.h>

#include <algorithm>
#include <memory>

#include "server/http/gpu_metrics.h"
#include "server/http/process_stats.h"

namespace tcgemm {
namespace {

using prometheus::BuildCounter;
using prometheus::BuildGauge;
using prometheus::BuildHistogram;
using prometheus::Counter;
using prometheus::Gauge;
using prometheus::Histogram;

// Doubling from 10 µs to 20 s.
Histogram::BucketBoundaries LatencyBuckets() {
  Histogram::BucketBoundaries buckets;
  for (double bound = 10e-6; bound < 22; bound *= 2) buckets.push_back(bound);
  return buckets;
}

Histogram::BucketBoundaries BatchBuckets() {
  Histogram::BucketBoundaries buckets;
  for (double bound = 1; bound <= 1024; bound *= 2) buckets.push_back(bound);
  return buckets;
}

// gRPC's names, by number.
constexpr std::array<const char*, 17> kCodeNames = {
    "OK",        "CANCELLED",      "UNKNOWN",           "INVALID_ARGUMENT",   "DEADLINE_EXCEEDED",
    "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION",
    "ABORTED",   "OUT_OF_RANGE",   "UNIMPLEMENTED",     "INTERNAL",           "UNAVAILABLE",
    "DATA_LOSS", "UNAUTHENTICATED"};

double Seconds(Nanos time) { return std::chrono::duration<double>(time).count(); }

// The counters of one family with one label, in the order of an enum.
template <typename Enum, size_t kCount, typename NameOf>
void AddEnumCounters(prometheus::Registry& registry, const std::string& name,
                     const std::string& help, const std::string& label, NameOf name_of,
                     std::array<Counter*, kCount>& counters) {
  auto& family = BuildCounter().Name(name).Help(help).Register(registry);
  for (size_t i = 0; i < kCount; ++i) {
    counters[i] = &family.Add({{label, std::string(name_of(static_cast<Enum>(i)))}});
  }
}

template <typename Enum>
size_t Index(Enum value) {
  return static_cast<size_t>(value);
}

}  // namespace

Metrics::Metrics(const MetricsOptions& options) {
  AddRequestMetrics(options);
  AddQueueMetrics();
  AddLaunchMetrics(options);
  AddMemoryMetrics();
  AddFaultMetrics(options);
  AddSecurityMetrics();
  AddProcessMetrics(options);
}

Gauge& Metrics::AddGauge(const std::string& name, const std::string& help) {
  return BuildGauge().Name(name).Help(help).Register(registry_).Add({});
}

void Metrics::AddRequestMetrics(const MetricsOptions& options) {
  auto& requests = BuildCounter()
                       .Name("tcgemm_requests_total")
                       .Help("Calls that ended, by method and gRPC code")
                       .Register(registry_);
  auto& durations = BuildHistogram()
                        .Name("tcgemm_request_duration_seconds")
                        .Help("From a call's headers to its end, in seconds")
                        .Register(registry_);
  for (const std::string& method : options.methods) {
    MethodSeries series;
    for (int code = 0; code < kCodeCount; ++code) {
      series.codes[code] = &requests.Add({{"method", method}, {"code", kCodeNames[code]}});
    }
    series.duration = &durations.Add({{"method", method}}, LatencyBuckets());
    methods_.emplace_back(method, series);
  }
  auto& stages = BuildHistogram()
                     .Name("tcgemm_stage_duration_seconds")
                     .Help("Time of answered calls in each stage, in seconds")
                     .Register(registry_);
  for (int i = 0; i < kStageCount; ++i) {
    stages_[i] =
        &stages.Add({{"stage", std::string(StageName(static_cast<Stage>(i)))}}, LatencyBuckets());
  }
  inflight_ = &AddGauge("tcgemm_inflight_requests", "Calls under way");
  AddEnumCounters<RejectReason>(registry_, "tcgemm_rejected_total",
                                "Calls refused by a limit or a state, by reason", "reason",
                                RejectReasonName, rejected_);
  AddEnumCounters<Stage>(registry_, "tcgemm_cancelled_total",
                         "Calls ended by their client or their deadline, by the stage they were in",
                         "stage", StageName, cancelled_);
}

void Metrics::AddQueueMetrics() {
  connections_refused_ = &BuildCounter()
                              .Name("tcgemm_connections_refused_total")
                              .Help("Connections closed at once: too few file descriptors left")
                              .Register(registry_)
                              .Add({});
  queue_depth_ = &AddGauge("tcgemm_queue_depth", "Jobs waiting for the device");
  queue_bytes_ =
      &AddGauge("tcgemm_queue_bytes", "Operand and result bytes of the jobs that wait, in bytes");
  batch_size_ = &BuildHistogram()
                     .Name("tcgemm_batch_size")
                     .Help("Requests in one launch")
                     .Register(registry_)
                     .Add({}, BatchBuckets());
  coalesced_ = &BuildCounter()
                    .Name("tcgemm_coalesced_requests_total")
                    .Help("Requests stacked with others that have the same resident B (GPU)")
                    .Register(registry_)
                    .Add({});
}

void Metrics::AddLaunchMetrics(const MetricsOptions& options) {
  auto& launches = BuildCounter()
                       .Name("tcgemm_launches_total")
                       .Help("Kernel launches, by kernel")
                       .Register(registry_);
  for (const KernelId kernel : AllKernels()) {
    launches_.resize(std::max(launches_.size(), Index(kernel) + 1));
    launches_[Index(kernel)] = &launches.Add({{"kernel", std::string(KernelName(kernel))}});
  }
  flops_ = &BuildCounter()
                .Name("tcgemm_flops_total")
                .Help(
                    "Floating-point operations of all launches (2 M N K each product); over "
                    "tcgemm_kernel_seconds_total it is the FLOPS")
                .Register(registry_)
                .Add({{"device", options.device}});
  kernel_seconds_ = &BuildCounter()
                         .Name("tcgemm_kernel_seconds_total")
                         .Help("Time in kernels, in seconds")
                         .Register(registry_)
                         .Add({{"device", options.device}});
  auto& transfers = BuildCounter()
                        .Name("tcgemm_transfer_bytes_total")
                        .Help("Bytes copied between host and device memory (none on the CPU)")
                        .Register(registry_);
  bytes_in_ = &transfers.Add({{"direction", "in"}});
  bytes_out_ = &transfers.Add({{"direction", "out"}});
}

void Metrics::AddMemoryMetrics() {
  resident_matrices_ = &AddGauge("tcgemm_resident_matrices", "Matrices that stay on the server");
  resident_bytes_ = &AddGauge("tcgemm_resident_bytes", "Memory of resident matrices, in bytes");
  auto& pools = BuildGauge()
                    .Name("tcgemm_pool_bytes")
                    .Help("Memory budgets, by pool and state, in bytes")
                    .Register(registry_);
  pool_used_ = &pools.Add({{"pool", "pinned"}, {"state", "used"}});
  pool_free_ = &pools.Add({{"pool", "pinned"}, {"state", "free"}});
  resident_pool_used_ = &pools.Add({{"pool", "resident"}, {"state", "used"}});
  resident_pool_free_ = &pools.Add({{"pool", "resident"}, {"state", "free"}});
  shared_pool_used_ = &pools.Add({{"pool", "shared"}, {"state", "used"}});
  shared_pool_free_ = &pools.Add({{"pool", "shared"}, {"state", "free"}});
  auto& maps = BuildCounter()
                   .Name("tcgemm_tensor_map_cache_total")
                   .Help("Look-ups of encoded tensor maps (none on the CPU)")
                   .Register(registry_);
  map_hits_ = &maps.Add({{"result", "hit"}});
  map_misses_ = &maps.Add({{"result", "miss"}});
}

void Metrics::AddFaultMetrics(const MetricsOptions& options) {
  auto& verifications = BuildCounter()
                            .Name("tcgemm_verification_total")
                            .Help("Results that the server checked, by outcome")
                            .Register(registry_);
  for (const char* result : {"ok", "mismatch", "skipped"}) verifications.Add({{"result", result}});
  nonfinite_ = &BuildCounter()
                    .Name("tcgemm_nonfinite_outputs_total")
                    .Help("Results with a NaN or an Inf in them")
                    .Register(registry_)
                    .Add({});
  AddEnumCounters<DeviceErrorKind>(registry_, "tcgemm_device_errors_total",
                                   "Failed device operations, by kind", "kind", DeviceErrorKindName,
                                   device_errors_);
  device_healthy_ = &BuildGauge()
                         .Name("tcgemm_device_healthy")
                         .Help("1 while the device works, 0 once it is lost")
                         .Register(registry_)
                         .Add({{"device", options.device}});
  ready_gauge_ = &AddGauge("tcgemm_ready", "1 while the server wants traffic");
  draining_gauge_ = &AddGauge("tcgemm_draining", "1 while the server is shutting down");
}

void Metrics::AddSecurityMetrics() {
  certificate_expiry_ = &AddGauge("tcgemm_certificate_expiry_timestamp_seconds",
                                  "When the served certificate expires, in seconds since the "
                                  "epoch; 0 without TLS");
  auto& reloads = BuildCounter()
                      .Name("tcgemm_certificate_reloads_total")
                      .Help("Changed certificate files: served, or refused as wrong")
                      .Register(registry_);
  certificates_served_ = &reloads.Add({{"result", "served"}});
  certificates_refused_ = &reloads.Add({{"result", "refused"}});
}

void Metrics::AddProcessMetrics(const MetricsOptions& options) {
  BuildGauge()
      .Name("tcgemm_build_info")
      .Help("1, with what was built in the labels")
      .Register(registry_)
      .Add({{"version", options.version},
            {"commit", options.commit},
            {"cuda", options.cuda},
            {"backend", options.backend}})
      .Set(1);
  resident_memory_ =
      &AddGauge("process_resident_memory_bytes", "Resident memory of the process, in bytes");
  open_fds_ = &AddGauge("process_open_fds", "Open file descriptors");
  max_fds_ = &AddGauge("process_max_fds", "The most file descriptors that may be open");
  start_time_ = &AddGauge("process_start_time_seconds",
                          "When the process started, in seconds since the epoch");
  cpu_seconds_ = &BuildCounter()
                      .Name("process_cpu_seconds_total")
                      .Help("User and system time of the process, in seconds")
                      .Register(registry_)
                      .Add({});
}

void Metrics::OnQueueChanged(int64_t jobs, int64_t bytes) {
  queue_depth_->Set(static_cast<double>(jobs));
  queue_bytes_->Set(static_cast<double>(bytes));
}

void Metrics::OnLaunch(const LaunchEvent& event) {
  if (!counting_.load()) return;
  launches_.at(Index(event.kernel))->Increment();
  batch_size_->Observe(event.batch_size);
  if (event.coalesced > 0) coalesced_->Increment(event.coalesced);
  flops_->Increment(event.flops);
  kernel_seconds_->Increment(Seconds(event.kernel_time));
}

void Metrics::OnCopyIn(size_t bytes) {
  if (counting_.load()) bytes_in_->Increment(static_cast<double>(bytes));
}

void Metrics::OnCopyOut(size_t bytes) {
  if (counting_.load()) bytes_out_->Increment(static_cast<double>(bytes));
}

void Metrics::OnTensorMaps(const TensorMapCounts& counts) {
  if (!counting_.load()) return;
  map_hits_->Increment(static_cast<double>(counts.hits));
  map_misses_->Increment(static_cast<double>(counts.misses));
}

void Metrics::OnCancelled(Stage stage) { cancelled_[Index(stage)]->Increment(); }

void Metrics::OnNonfiniteOutput() {
  if (counting_.load()) nonfinite_->Increment();
}

void Metrics::OnDeviceError(DeviceErrorKind kind) { device_errors_[Index(kind)]->Increment(); }

void Metrics::OnDeviceHealth(bool healthy) { device_healthy_->Set(healthy ? 1 : 0); }

void Metrics::OnCallStarted(std::string_view /*method*/) { inflight_->Increment(); }

void Metrics::OnCallEnded(std::string_view method, absl::StatusCode code, Nanos duration) {
  inflight_->Decrement();
  const auto it = std::find_if(methods_.begin(), methods_.end(),
                               [&](const auto& entry) { return entry.first == method; });
  if (it == methods_.end()) return;
  const int number = static_cast<int>(code);
  it->second.codes[number >= 0 && number < kCodeCount ? number : 2]->Increment();
  it->second.duration->Observe(Seconds(duration));
}

void Metrics::OnStage(Stage stage, Nanos duration) {
  stages_[Index(stage)]->Observe(Seconds(duration));
}

void Metrics::OnRejected(RejectReason reason) { rejected_[Index(reason)]->Increment(); }

void Metrics::OnCallCancelled(Stage stage) { cancelled_[Index(stage)]->Increment(); }

void Metrics::OnConnectionRefused() { connections_refused_->Increment(); }

void Metrics::OnCertificate(int64_t expires_at) {
  certificate_expiry_->Set(static_cast<double>(expires_at));
}

void Metrics::OnCertificateReload(bool ok) {
  (ok ? certificates_served_ : certificates_refused_)->Increment();
}

void Metrics::SetReady(bool ready) {
  ready_.store(ready);
  ready_gauge_->Set(ready ? 1 : 0);
}

void Metrics::SetDraining(bool draining) {
  draining_.store(draining);
  draining_gauge_->Set(draining ? 1 : 0);
}

void Metrics::WatchPool(const BufferPool* pool) { pool_.store(pool); }

void Metrics::WatchResidents(ResidentStore* residents) { residents_.store(residents); }

void Metrics::WatchRegions(const SharedRegionStore* regions) { regions_.store(regions); }

std::string_view Metrics::readiness() const {
  if (ready()) return "ready";
  if (draining()) return "draining";
  // Known to be well since before this port is open.
  return device_healthy_->Value() > 0 ? "starting" : "device lost";
}

void Metrics::WatchGpu(const GpuTelemetry* gpu) { gpu_.store(gpu); }

std::vector<prometheus::MetricFamily> Metrics::Collect() {
  RefreshAtScrape();
  std::vector<prometheus::MetricFamily> families = registry_.Collect();
  const GpuTelemetry* const gpu = gpu_.load();
  for (prometheus::MetricFamily& family :
       GpuFamilies(gpu == nullptr ? GpuSnapshot{} : gpu->Latest())) {
    families.push_back(std::move(family));
  }
  return families;
}

std::string Metrics::Serialize() { return prometheus::TextSerializer().Serialize(Collect()); }

void Metrics::RefreshAtScrape() {
  if (const BufferPool* const pool = pool_.load(); pool != nullptr) {
    const auto used = static_cast<double>(pool->used_bytes());
    pool_used_->Set(used);
    pool_free_->Set(static_cast<double>(pool->total_bytes()) - used);
  }
  if (ResidentStore* const residents = residents_.load(); residents != nullptr) {
    const ResidentStats resident = residents->stats();
    resident_matrices_->Set(static_cast<double>(resident.matrices));
    resident_bytes_->Set(static_cast<double>(resident.bytes));
    const auto used = static_cast<double>(residents->pool().used_bytes());
    resident_pool_used_->Set(used);
    resident_pool_free_->Set(static_cast<double>(residents->pool().total_bytes()) - used);
  }
  if (const SharedRegionStore* const regions = regions_.load(); regions != nullptr) {
    const auto used = static_cast<double>(regions->used_bytes());
    shared_pool_used_->Set(used);
    shared_pool_free_->Set(std::max(0.0, static_cast<double>(regions->total_bytes()) - used));
  }
  const ProcessStats stats = ReadProcessStats();
  resident_memory_->Set(stats.resident_bytes);
  open_fds_->Set(stats.open_fds);
  max_fds_->Set(stats.max_fds);
  start_time_->Set(stats.start_time_seconds);
  cpu_seconds_->Increment(std::max(0.0, stats.cpu_seconds - cpu_seconds_->Value()));
}

}  // namespace tcgemm
