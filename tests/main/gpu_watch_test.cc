#include "server/main/gpu_watch.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace tcgemm {
namespace {

// With a library there is a test of the process: tests/e2e/gpu_telemetry_test.py.
TEST(GpuWatchTest, WithoutAGpuThereIsNothingToWatch) {
  unsetenv("TCGEMM_FAILPOINT");
  EXPECT_EQ(StartGpuTelemetry(DeviceInfo{.name = "cpu"}), nullptr);
}

TEST(GpuWatchTest, AGpuWithoutNvmlIsWatchedAndDown) {
  setenv("TCGEMM_FAILPOINT", "nvml:/no/such/library.so", 1);
  auto telemetry = StartGpuTelemetry(DeviceInfo{.name = "cuda:0", .pci_id = "0000:0f:00.0"});
  ASSERT_NE(telemetry, nullptr);
  EXPECT_FALSE(telemetry->Latest().up);
  EXPECT_TRUE(telemetry->Stop());
  telemetry.reset();
  unsetenv("TCGEMM_FAILPOINT");
}

}  // namespace
}  // namespace tcgemm
