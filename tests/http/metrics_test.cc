#include "server/http/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "server/engine/buffer_pool.h"

namespace tcgemm {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

MetricsOptions Options() {
  return {.version = "1",
          .commit = "c",
          .cuda = "",
          .backend = "b",
          .device = "cpu",
          .methods = {"Matmul", "Other"}};
}

TEST(MetricsTest, EverySeriesIsThereAtZero) {
  Metrics metrics(Options());
  const std::string text = metrics.Serialize();
  for (const char* series :
       {"tcgemm_requests_total{code=\"OK\",method=\"Matmul\"} 0",
        "tcgemm_requests_total{code=\"UNAUTHENTICATED\",method=\"Other\"} 0",
        "tcgemm_request_duration_seconds_count{method=\"Matmul\"} 0",
        "tcgemm_stage_duration_seconds_count{stage=\"copy_out\"} 0",
        "tcgemm_rejected_total{reason=\"memory\"} 0", "tcgemm_cancelled_total{stage=\"queue\"} 0",
        "tcgemm_launches_total{kernel=\"cpu_plain\"} 0", "tcgemm_batch_size_count 0",
        "tcgemm_flops_total{device=\"cpu\"} 0", "tcgemm_ready 0", "tcgemm_draining 0",
        "tcgemm_device_errors_total{kind=\"watchdog\"} 0",
        "tcgemm_verification_total{result=\"ok\"} 0", "tcgemm_resident_bytes 0",
        "tcgemm_coalesced_requests_total 0"}) {
    EXPECT_THAT(text, HasSubstr(series));
  }
}

TEST(MetricsTest, LatencyBucketsDoubleFromTenMicroseconds) {
  const std::string text = Metrics(Options()).Serialize();
  EXPECT_THAT(text,
              HasSubstr("tcgemm_request_duration_seconds_bucket{method=\"Matmul\",le=\"1e-05\"}"));
  EXPECT_THAT(text, HasSubstr("le=\"2e-05\""));
  EXPECT_THAT(text, HasSubstr("le=\"20.97152\""));
}

TEST(MetricsTest, CountsCalls) {
  Metrics metrics(Options());
  metrics.OnCallStarted("Matmul");
  metrics.OnCallStarted("Matmul");
  EXPECT_THAT(metrics.Serialize(), HasSubstr("tcgemm_inflight_requests 2"));
  metrics.OnCallEnded("Matmul", absl::StatusCode::kOk, std::chrono::milliseconds(5));
  metrics.OnCallEnded("Matmul", absl::StatusCode::kUnavailable, std::chrono::milliseconds(5));
  metrics.OnCallStarted("Unknown");
  metrics.OnCallEnded("Unknown", absl::StatusCode::kOk, Nanos(1));
  metrics.OnStage(Stage::kKernel, std::chrono::microseconds(15));
  metrics.OnRejected(RejectReason::kQueue);
  metrics.OnCallCancelled(Stage::kReceive);
  metrics.OnConnectionRefused();
  const std::string text = metrics.Serialize();
  EXPECT_THAT(text, HasSubstr("tcgemm_inflight_requests 0"));
  EXPECT_THAT(text, HasSubstr("tcgemm_requests_total{code=\"OK\",method=\"Matmul\"} 1"));
  EXPECT_THAT(text, HasSubstr("tcgemm_requests_total{code=\"UNAVAILABLE\",method=\"Matmul\"} 1"));
  EXPECT_THAT(text, HasSubstr("tcgemm_request_duration_seconds_sum{method=\"Matmul\"} 0.01"));
  EXPECT_THAT(text, Not(HasSubstr("Unknown")));
  EXPECT_THAT(text,
              HasSubstr("tcgemm_stage_duration_seconds_bucket{stage=\"kernel\",le=\"1e-05\"} 0"));
  EXPECT_THAT(text,
              HasSubstr("tcgemm_stage_duration_seconds_bucket{stage=\"kernel\",le=\"2e-05\"} 1"));
  EXPECT_THAT(text, HasSubstr("tcgemm_rejected_total{reason=\"queue\"} 1"));
  EXPECT_THAT(text, HasSubstr("tcgemm_cancelled_total{stage=\"receive\"} 1"));
  EXPECT_THAT(text, HasSubstr("tcgemm_connections_refused_total 1"));
}

TEST(MetricsTest, LaunchesCountOnlyOnceCountingHasStarted) {
  Metrics metrics(Options());
  const LaunchEvent launch = {.kernel = KernelId::kCpuPlain,
                              .batch_size = 3,
                              .flops = 1000,
                              .kernel_time = std::chrono::milliseconds(500)};
  metrics.OnLaunch(launch);
  metrics.OnTensorMaps({.hits = 2, .misses = 2});
  EXPECT_THAT(metrics.Serialize(), HasSubstr("tcgemm_launches_total{kernel=\"cpu_plain\"} 0"));
  metrics.StartCounting();
  metrics.OnLaunch(launch);
  metrics.OnCopyIn(100);
  metrics.OnCopyOut(50);
  metrics.OnTensorMaps({.hits = 5, .misses = 1});
  metrics.OnNonfiniteOutput();
  const std::string text = metrics.Serialize();
  EXPECT_THAT(text, HasSubstr("tcgemm_launches_total{kernel=\"cpu_plain\"} 1"));
  EXPECT_THAT(text, HasSubstr("tcgemm_batch_size_bucket{le=\"2\"} 0"));
  EXPECT_THAT(text, HasSubstr("tcgemm_batch_size_bucket{le=\"4\"} 1"));
  EXPECT_THAT(text, HasSubstr("tcgemm_flops_total{device=\"cpu\"} 1000"));
  EXPECT_THAT(text, HasSubstr("tcgemm_kernel_seconds_total{device=\"cpu\"} 0.5"));
  EXPECT_THAT(text, HasSubstr("tcgemm_transfer_bytes_total{direction=\"in\"} 100"));
  EXPECT_THAT(text, HasSubstr("tcgemm_transfer_bytes_total{direction=\"out\"} 50"));
  EXPECT_THAT(text, HasSubstr("tcgemm_nonfinite_outputs_total 1"));
  EXPECT_THAT(text, HasSubstr("tcgemm_tensor_map_cache_total{result=\"hit\"} 5"));
  EXPECT_THAT(text, HasSubstr("tcgemm_tensor_map_cache_total{result=\"miss\"} 1"));
}

TEST(MetricsTest, CertificatesAreToldAndCounted) {
  Metrics metrics(Options());
  metrics.OnCertificate(1'800'000'000);
  metrics.OnCertificateReload(/*ok=*/true);
  metrics.OnCertificateReload(/*ok=*/false);
  metrics.OnCertificateReload(/*ok=*/false);
  const std::string text = metrics.Serialize();
  EXPECT_THAT(text, HasSubstr("tcgemm_certificate_expiry_timestamp_seconds 1800000000\n"));
  EXPECT_THAT(text, HasSubstr("tcgemm_certificate_reloads_total{result=\"served\"} 1"));
  EXPECT_THAT(text, HasSubstr("tcgemm_certificate_reloads_total{result=\"refused\"} 2"));
}

TEST(MetricsTest, GaugesFollow) {
  Metrics metrics(Options());
  metrics.OnQueueChanged(3, 4096);
  metrics.SetReady(true);
  metrics.OnDeviceHealth(true);
  std::string text = metrics.Serialize();
  EXPECT_THAT(text, HasSubstr("tcgemm_queue_depth 3"));
  EXPECT_THAT(text, HasSubstr("tcgemm_queue_bytes 4096"));
  EXPECT_THAT(text, HasSubstr("tcgemm_ready 1"));
  EXPECT_THAT(text, HasSubstr("tcgemm_device_healthy{device=\"cpu\"} 1"));
  metrics.SetDraining(true);
  EXPECT_TRUE(metrics.draining());
  EXPECT_TRUE(metrics.ready());
}

TEST(MetricsTest, PoolBytesAreReadAtTheScrape) {
  Metrics metrics(Options());
  const size_t bytes = 2 * BufferPool::kAlignment;
  BufferPool pool(
      "pinned", MemoryBlock(std::aligned_alloc(4096, bytes), bytes, [](void* p) { std::free(p); }));
  metrics.WatchPool(&pool);
  const Lease lease = pool.TryLease(10).value();
  const std::string text = metrics.Serialize();
  EXPECT_THAT(text, HasSubstr("tcgemm_pool_bytes{pool=\"pinned\",state=\"used\"} 4096"));
  EXPECT_THAT(text, HasSubstr("tcgemm_pool_bytes{pool=\"pinned\",state=\"free\"} 4096"));
  metrics.WatchPool(nullptr);
}

}  // namespace
}  // namespace tcgemm
