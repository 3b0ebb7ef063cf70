// The driver's own NVML beside what CUDA says: our declarations of its ABI are right, and the GPU
// is found by its bus. Skipped without a GPU.
#include <gtest/gtest.h>

#include <memory>

#include "kernels/cuda_info.h"
#include "server/telemetry/nvml_reader.h"

namespace tcgemm {
namespace {

class GpuNvmlTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const absl::StatusOr<CudaInfo> info = ReadCudaInfo(0);
    if (!info.ok()) GTEST_SKIP() << info.status().message();
    info_ = *info;
    absl::StatusOr<std::unique_ptr<GpuReader>> reader = OpenNvml({.pci_id = info_.pci_id});
    if (absl::IsNotFound(reader.status())) GTEST_SKIP() << reader.status().message();
    ASSERT_TRUE(reader.ok()) << reader.status();
    reader_ = *std::move(reader);
  }

  CudaInfo info_;
  std::unique_ptr<GpuReader> reader_;
};

TEST_F(GpuNvmlTest, TellsWhatIsPlausible) {
  const absl::StatusOr<GpuReading> reading = reader_->Read();
  ASSERT_TRUE(reading.ok()) << reading.status();
  // CUDA leaves out what the driver keeps for itself, and tells a MIG instance's share.
  ASSERT_TRUE(reading->memory_total_bytes.has_value());
  EXPECT_GE(*reading->memory_total_bytes, static_cast<double>(info_.memory_bytes));
  EXPECT_LE(*reading->memory_used_bytes, *reading->memory_total_bytes);
  ASSERT_TRUE(reading->temperature_celsius.has_value());
  EXPECT_GT(*reading->temperature_celsius, 5);
  EXPECT_LT(*reading->temperature_celsius, 110);
  if (reading->utilization.has_value()) {
    EXPECT_GE(*reading->utilization, 0);
    EXPECT_LE(*reading->utilization, 1);
  }
  if (reading->power_watts.has_value()) {
    EXPECT_GT(*reading->power_watts, 1);
    EXPECT_LT(*reading->power_watts, 3000);
  }
  if (reading->sm_clock_hertz.has_value() && reading->max_sm_clock_hertz.has_value()) {
    EXPECT_GT(*reading->sm_clock_hertz, 50e6);
    EXPECT_GT(*reading->max_sm_clock_hertz, 500e6);
    EXPECT_LT(*reading->max_sm_clock_hertz, 10e9);
  }
}

TEST_F(GpuNvmlTest, HasNoXidsForNothing) {
  const auto xids = reader_->TakeXids();
  ASSERT_TRUE(xids.ok()) << xids.status();
  EXPECT_TRUE(xids->empty());
}

TEST_F(GpuNvmlTest, ABusWithoutAGpuIsAnError) {
  EXPECT_TRUE(absl::IsUnavailable(OpenNvml({.pci_id = "ffff:ff:1f.0"}).status()));
}

}  // namespace
}  // namespace tcgemm
