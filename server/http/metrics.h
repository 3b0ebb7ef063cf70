// Every metric of the server, in one table. docs/OPERATIONS.md explains them.
//
// All series exist at 0 from the start, so that rates and alerts work before the first event; but
// what a GPU measures is there only while it is known (gpu_metrics.h).
// Counting makes no labels: each series is found once, at the start.
#ifndef TCGEMM_SERVER_HTTP_METRICS_H_
#define TCGEMM_SERVER_HTTP_METRICS_H_

#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/metric_family.h>
#include <prometheus/registry.h>

#include <array>
#include <atomic>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/engine/buffer_pool.h"
#include "server/engine/engine_events.h"
#include "server/engine/resident_store.h"
#include "server/engine/shared_region_store.h"
#include "server/telemetry/gpu_telemetry.h"

namespace tcgemm {

struct MetricsOptions {
  std::string version;
  std::string commit;
  std::string cuda;
  std::string backend;
  std::string device;                // "cpu", "cuda:N"
  std::vector<std::string> methods;  // of the service, without its name
};

// Thread-safe.
class Metrics final : public EngineEvents, public CallEvents, public SecurityEvents {
 public:
  explicit Metrics(const MetricsOptions& options);

  void OnQueueChanged(int64_t jobs, int64_t bytes) override;
  void OnLaunch(const LaunchEvent& event) override;
  void OnCopyIn(size_t bytes) override;
  void OnCopyOut(size_t bytes) override;
  void OnCancelled(Stage stage) override;
  void OnTensorMaps(const TensorMapCounts& counts) override;
  void OnNonfiniteOutput() override;
  void OnDeviceError(DeviceErrorKind kind) override;
  void OnDeviceHealth(bool healthy) override;

  void OnCallStarted(std::string_view method) override;
  void OnCallEnded(std::string_view method, absl::StatusCode code, Nanos duration) override;
  void OnStage(Stage stage, Nanos duration) override;
  void OnRejected(RejectReason reason) override;
  void OnCallCancelled(Stage stage) override;
  void OnConnectionRefused() override;

  void OnCertificate(int64_t expires_at) override;
  void OnCertificateReload(bool ok) override;

  void SetReady(bool ready);
  void SetDraining(bool draining);
  bool ready() const { return ready_.load(); }
  bool draining() const { return draining_.load(); }
  // "ready", "draining", "starting" or "device lost".
  std::string_view readiness() const;
  // From now on events of the engine count; those of its self-test did not.
  void StartCounting() { counting_.store(true); }
  // Whose bytes tcgemm_pool_bytes and tcgemm_resident_* show at each scrape; null to show none any
  // more.
  void WatchPool(const BufferPool* pool);
  void WatchResidents(ResidentStore* residents);
  void WatchRegions(const SharedRegionStore* regions);
  // Whose tcgemm_gpu_* they are; null: no GPU's.
  void WatchGpu(const GpuTelemetry* gpu);

  // Every series, read now.
  std::vector<prometheus::MetricFamily> Collect();
  // The text of /metrics (Prometheus text format 0.0.4), read now.
  std::string Serialize();

 private:
  static constexpr int kCodeCount = 17;
  struct MethodSeries {
    std::array<prometheus::Counter*, kCodeCount> codes{};
    prometheus::Histogram* duration = nullptr;
  };

  void AddRequestMetrics(const MetricsOptions& options);
  void AddQueueMetrics();
  void AddLaunchMetrics(const MetricsOptions& options);
  void AddMemoryMetrics();
  void AddFaultMetrics(const MetricsOptions& options);
  void AddSecurityMetrics();
  void AddProcessMetrics(const MetricsOptions& options);
  prometheus::Gauge& AddGauge(const std::string& name, const std::string& help);
  void RefreshAtScrape();

  prometheus::Registry registry_;
  std::atomic<bool> counting_{false};
  std::atomic<bool> ready_{false};
  std::atomic<bool> draining_{false};
  std::atomic<const BufferPool*> pool_{nullptr};
  std::atomic<ResidentStore*> residents_{nullptr};
  std::atomic<const SharedRegionStore*> regions_{nullptr};
  std::atomic<const GpuTelemetry*> gpu_{nullptr};

  // A handful, the busiest first: faster than a map.
  std::vector<std::pair<std::string, MethodSeries>> methods_;
  std::array<prometheus::Histogram*, kStageCount> stages_{};
  std::array<prometheus::Counter*, kStageCount> cancelled_{};
  std::array<prometheus::Counter*, kRejectReasonCount> rejected_{};
  std::array<prometheus::Counter*, kDeviceErrorKindCount> device_errors_{};
  std::vector<prometheus::Counter*> launches_;  // by KernelId
  prometheus::Gauge* queue_depth_ = nullptr;
  prometheus::Gauge* queue_bytes_ = nullptr;
  prometheus::Gauge* inflight_ = nullptr;
  prometheus::Histogram* batch_size_ = nullptr;
  prometheus::Counter* connections_refused_ = nullptr;
  prometheus::Counter* coalesced_ = nullptr;
  prometheus::Counter* flops_ = nullptr;
  prometheus::Counter* kernel_seconds_ = nullptr;
  prometheus::Counter* bytes_in_ = nullptr;
  prometheus::Counter* bytes_out_ = nullptr;
  prometheus::Counter* map_hits_ = nullptr;
  prometheus::Counter* map_misses_ = nullptr;
  prometheus::Gauge* pool_used_ = nullptr;
  prometheus::Gauge* pool_free_ = nullptr;
  prometheus::Gauge* resident_pool_used_ = nullptr;
  prometheus::Gauge* resident_pool_free_ = nullptr;
  prometheus::Gauge* shared_pool_used_ = nullptr;
  prometheus::Gauge* shared_pool_free_ = nullptr;
  prometheus::Gauge* resident_matrices_ = nullptr;
  prometheus::Gauge* resident_bytes_ = nullptr;
  prometheus::Gauge* certificate_expiry_ = nullptr;
  prometheus::Counter* certificates_served_ = nullptr;
  prometheus::Counter* certificates_refused_ = nullptr;
  prometheus::Counter* nonfinite_ = nullptr;
  prometheus::Gauge* device_healthy_ = nullptr;
  prometheus::Gauge* ready_gauge_ = nullptr;
  prometheus::Gauge* draining_gauge_ = nullptr;
  prometheus::Gauge* resident_memory_ = nullptr;
  prometheus::Gauge* open_fds_ = nullptr;
  prometheus::Gauge* max_fds_ = nullptr;
  prometheus::Gauge* start_time_ = nullptr;
  prometheus::Counter* cpu_seconds_ = nullptr;
};

}  // namespace tcgemm

#endif  // TCGEMM_SERVER_HTTP_METRICS_H_
