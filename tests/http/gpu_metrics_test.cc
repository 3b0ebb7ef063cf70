#include "server/http/gpu_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <prometheus/text_serializer.h>

#include <future>
#include <memory>
#include <string>

#include "server/http/metrics.h"

namespace tcgemm {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string Text(const GpuSnapshot& snapshot) {
  return prometheus::TextSerializer().Serialize(GpuFamilies(snapshot));
}

TEST(GpuMetricsTest, WithoutAGpuOnlyWhatIsTrue) {
  EXPECT_EQ(Text({}),
            "# HELP tcgemm_gpu_telemetry_up 1 while the GPU tells about itself; 0 without a GPU or "
            "NVML\n"
            "# TYPE tcgemm_gpu_telemetry_up gauge\n"
            "tcgemm_gpu_telemetry_up 0\n"
            "# HELP tcgemm_gpu_ecc_errors_total Memory errors since the server started, corrected "
            "or not\n"
            "# TYPE tcgemm_gpu_ecc_errors_total counter\n"
            "tcgemm_gpu_ecc_errors_total{kind=\"corrected\"} 0\n"
            "tcgemm_gpu_ecc_errors_total{kind=\"uncorrected\"} 0\n"
            "# HELP tcgemm_gpu_xid_errors_total Xid errors of the GPU since the server started\n"
            "# TYPE tcgemm_gpu_xid_errors_total counter\n"
            "tcgemm_gpu_xid_errors_total 0\n"
            "# HELP tcgemm_gpu_last_xid Number of the last of them; 0: there was none\n"
            "# TYPE tcgemm_gpu_last_xid gauge\n"
            "tcgemm_gpu_last_xid 0\n");
}

TEST(GpuMetricsTest, EverythingThatIsKnown) {
  GpuSnapshot snapshot = {
      .up = true, .ecc_corrected = 7, .ecc_uncorrected = 1, .xid_errors = 2, .last_xid = 79};
  snapshot.reading = {.utilization = 0.25,
                      .memory_used_bytes = 5e9,
                      .memory_total_bytes = 150e9,
                      .power_watts = 300.5,
                      .power_limit_watts = 700,
                      .sm_clock_hertz = 1755e6,
                      .max_sm_clock_hertz = 1980e6,
                      .temperature_celsius = 41};
  snapshot.reading.throttle.emplace().at(static_cast<int>(ThrottleReason::kHwThermal)) = true;
  const std::string text = Text(snapshot);
  for (const char* line :
       {"tcgemm_gpu_telemetry_up 1\n", "tcgemm_gpu_utilization_ratio 0.25\n",
        "tcgemm_gpu_memory_used_bytes 5000000000\n", "tcgemm_gpu_memory_total_bytes 150000000000\n",
        "tcgemm_gpu_power_watts 300.5\n", "tcgemm_gpu_power_limit_watts 700\n",
        "tcgemm_gpu_sm_clock_hertz 1755000000\n", "tcgemm_gpu_sm_clock_max_hertz 1980000000\n",
        "tcgemm_gpu_temperature_celsius 41\n", "tcgemm_gpu_throttle_active{reason=\"idle\"} 0\n",
        "tcgemm_gpu_throttle_active{reason=\"hw_thermal\"} 1\n",
        "tcgemm_gpu_throttle_active{reason=\"display_clocks\"} 0\n",
        "tcgemm_gpu_ecc_errors_total{kind=\"corrected\"} 7\n",
        "tcgemm_gpu_ecc_errors_total{kind=\"uncorrected\"} 1\n", "tcgemm_gpu_xid_errors_total 2\n",
        "tcgemm_gpu_last_xid 79\n"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
}

// Reads once, then hangs until its test ends.
class HangingReader final : public GpuReader {
 public:
  HangingReader(std::promise<void>* hangs, std::shared_future<void> end)
      : hangs_(hangs), end_(std::move(end)) {}
  absl::StatusOr<std::vector<uint64_t>> TakeXids() override { return std::vector<uint64_t>{}; }
  absl::StatusOr<GpuReading> Read() override {
    if (read_) {
      hangs_->set_value();
      end_.wait();
      return absl::UnavailableError("over");
    }
    read_ = true;
    GpuReading reading;
    reading.temperature_celsius = 41;
    return reading;
  }

 private:
  std::promise<void>* const hangs_;
  const std::shared_future<void> end_;
  bool read_ = false;
};

TEST(GpuMetricsTest, AScrapeNeverWaitsForTheGpu) {
  std::promise<void> hangs;
  std::promise<void> end;
  FakeClock clock;
  Metrics metrics({.device = "cuda:0", .methods = {"Matmul"}});
  EXPECT_THAT(metrics.Serialize(), HasSubstr("tcgemm_gpu_telemetry_up 0\n"));
  {
    const GpuTelemetry gpu(
        [&hangs, until = end.get_future().share()]() -> absl::StatusOr<std::unique_ptr<GpuReader>> {
          return std::make_unique<HangingReader>(&hangs, until);
        },
        &clock, {.period = std::chrono::milliseconds(1), .retry_period = std::chrono::hours(1)});
    metrics.WatchGpu(&gpu);
    hangs.get_future().wait();
    EXPECT_THAT(metrics.Serialize(), HasSubstr("tcgemm_gpu_temperature_celsius 41\n"));
    clock.Advance(std::chrono::minutes(1));
    const std::string text = metrics.Serialize();
    EXPECT_THAT(text, HasSubstr("tcgemm_gpu_telemetry_up 0\n"));
    EXPECT_THAT(text, Not(HasSubstr("tcgemm_gpu_temperature_celsius")));
    end.set_value();
    metrics.WatchGpu(nullptr);
  }
  EXPECT_THAT(metrics.Serialize(), HasSubstr("tcgemm_gpu_telemetry_up 0\n"));
}

}  // namespace
}  // namespace tcgemm
