// What a build with the GPU backend says on a machine without a GPU.
#include "kernels/device_cuda.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "kernels/cuda_info.h"
#include "kernels/cuda_memory.h"
#include "kernels/tensor_map_encode.h"

namespace tcgemm {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(DeviceCudaTest, WithoutAGpuCreationSaysWhy) {
  const absl::Status usable = CudaDeviceUsable(0);
  if (usable.ok()) GTEST_SKIP() << "this machine has a GPU";
  EXPECT_TRUE(absl::IsFailedPrecondition(usable)) << usable;
  EXPECT_THAT(std::string(usable.message()), StartsWith("no usable GPU: "));
  const absl::StatusOr<std::unique_ptr<Device>> device = CreateCudaDevice(0);
  EXPECT_EQ(device.status(), usable);
}

TEST(DeviceCudaTest, WithoutADriverNothingAborts) {
  if (CudaDeviceUsable(0).ok()) GTEST_SKIP() << "this machine has a GPU";
  EXPECT_TRUE(absl::IsFailedPrecondition(FindTensorMapEncoder().status()));
  EXPECT_FALSE(UseCudaDevice(0).ok());
  EXPECT_FALSE(AllocateGpuMemory(16, 0).ok());
  EXPECT_FALSE(AllocatePinnedMemory(16, -1).ok());
  EXPECT_FALSE(AllocatePinnedMemory(16, 0).ok());
}

TEST(DeviceCudaTest, ImpossibleOrdinalsAreRefusedEverywhere) {
  for (int ordinal : {-1, 1000}) {
    EXPECT_TRUE(absl::IsFailedPrecondition(CudaDeviceUsable(ordinal))) << ordinal;
  }
}

// In a process of its own: CUDA reads the variable once.
TEST(DeviceCudaTest, HiddenGpusAreNoGpus) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto say_why = [] {
    setenv("CUDA_VISIBLE_DEVICES", "", 1);
    std::fputs(CudaDeviceUsable(0).ToString().c_str(), stderr);
    std::_Exit(0);
  };
  EXPECT_EXIT(say_why(), ::testing::ExitedWithCode(0), "FAILED_PRECONDITION: no usable GPU: ");
}

TEST(DeviceCudaTest, InfoBecomesLimits) {
  CudaInfo info;
  info.chip = "NVIDIA H200";
  info.compute_capability = 90;
  info.multiprocessors = 132;
  info.memory_bytes = size_t{140} << 30;
  info.shared_bytes_per_block = 232448;
  info.shared_bytes_per_multiprocessor = 233472;
  info.driver_version = "580.65.06";
  info.driver_cuda = 13000;
  info.runtime_cuda = 12080;
  EXPECT_EQ(info.Describe(),
            "NVIDIA H200, sm_90, 132 SMs, 140.0 GiB, driver 580.65.06 (CUDA 13.0), runtime 12.8");
  PlanLimits limits = PlanLimitsOf(info);
  EXPECT_THAT(limits.kernels, ::testing::ElementsAre(KernelId::kTmaWgmma, KernelId::kTmaMma,
                                                     KernelId::kCpAsyncMma));
  EXPECT_EQ(limits.compute_capability, 90);
  EXPECT_EQ(limits.multiprocessors, 132);
  EXPECT_EQ(limits.shared_bytes_per_block, 232448u);
  EXPECT_EQ(limits.shared_bytes_per_multiprocessor, 233472u);
  EXPECT_EQ(limits.max_problems, 96);
  info.compute_capability = 86;
  info.driver_version = "";
  limits = PlanLimitsOf(info);
  EXPECT_THAT(limits.kernels, ::testing::ElementsAre(KernelId::kCpAsyncMma));
  EXPECT_THAT(info.Describe(), HasSubstr("sm_86, 132 SMs, 140.0 GiB, driver (CUDA 13.0)"));
}

}  // namespace
}  // namespace tcgemm
