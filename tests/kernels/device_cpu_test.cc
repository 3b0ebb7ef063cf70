#include "kernels/device_cpu.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "tests/kernels/product.h"

namespace tcgemm {
namespace {

TEST(DeviceCpuTest, DescribesItself) {
  Device& device = TestCpuDevice(3);
  const DeviceInfo& info = device.info();
  EXPECT_EQ(info.name, "cpu");
  EXPECT_TRUE(info.backend == "onednn" || info.backend == "plain") << info.backend;
  EXPECT_NE(info.description.find("3 threads"), std::string::npos) << info.description;
  EXPECT_TRUE(info.unified_memory);
  EXPECT_GT(info.flops_per_second, 1e6);
  EXPECT_TRUE(device.healthy());
  EXPECT_FALSE(device.plan_limits().kernels.empty());
}

TEST(DeviceCpuTest, MemoryIsAlignedAndZero) {
  Device& device = TestCpuDevice();
  for (size_t bytes : {size_t{1}, size_t{4096}, size_t{5'000'001}}) {
    absl::StatusOr<MemoryBlock> block = device.AllocatePinned(bytes);
    ASSERT_TRUE(block.ok()) << block.status();
    EXPECT_EQ(block->bytes(), bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(block->data()) % 4096, 0u);
    EXPECT_EQ(block->data()[bytes - 1], std::byte{0});
    block->data()[bytes - 1] = std::byte{1};
  }
  EXPECT_EQ(device.AllocateDevice(0)->data(), nullptr);
}

TEST(DeviceCpuTest, MemoryForLaterIsZeroAndComesWhenItIsUsed) {
  constexpr size_t kBytes = size_t{64} << 20;
  constexpr size_t kPage = 4096;
  const MemoryBlock block = TestCpuDevice().AllocateForLater(kBytes).value();
  const auto pages_there = [&] {
    std::vector<unsigned char> pages(kBytes / kPage);
    EXPECT_EQ(mincore(block.data(), kBytes, pages.data()), 0);
    return std::count_if(pages.begin(), pages.end(), [](unsigned char it) { return it & 1; });
  };
  EXPECT_EQ(pages_there(), 0);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(block.data()) % kPage, 0u);
  EXPECT_EQ(block.data()[kBytes - 1], std::byte{0});
  block.data()[0] = std::byte{1};
  EXPECT_EQ(block.data()[1], std::byte{0});
  EXPECT_GE(pages_there(), 1);
  EXPECT_LE(pages_there(), 2 * 512);  // two huge pages at most
}

TEST(DeviceCpuTest, TooMuchMemoryIsAnErrorNotACrash) {
  Device& device = TestCpuDevice();
  for (size_t bytes : {size_t{1} << 46, SIZE_MAX - 4095, SIZE_MAX}) {
    EXPECT_TRUE(absl::IsResourceExhausted(device.AllocatePinned(bytes).status()));
    EXPECT_TRUE(absl::IsResourceExhausted(device.AllocateDevice(bytes).status()));
    EXPECT_TRUE(absl::IsResourceExhausted(device.AllocateForLater(bytes).status()));
  }
}

TEST(DeviceCpuTest, CopiesRowsAndNothingElse) {
  Device& device = TestCpuDevice();
  const std::unique_ptr<Stream> stream = *device.CreateStream();
  const std::string source = "abcd..efgh..ijkl";
  std::string destination(14, '-');
  Copy2d copy{destination.data(), source.data(), 5, 6, 4, 3};
  ASSERT_TRUE(device.CopyIn(*stream, copy).ok());
  EXPECT_EQ(destination, "abcd-efgh-ijkl");
  std::string back(16, '_');
  ASSERT_TRUE(device.CopyOut(*stream, {back.data(), destination.data(), 6, 5, 4, 3}).ok());
  EXPECT_EQ(back, "abcd__efgh__ijkl");
  // Dense, one row without pitches, and nothing at all.
  ASSERT_TRUE(device.CopyIn(*stream, {back.data(), source.data(), 8, 8, 8, 2}).ok());
  EXPECT_EQ(back, source);
  ASSERT_TRUE(device.CopyIn(*stream, {back.data(), "xy", 0, 0, 2, 1}).ok());
  EXPECT_EQ(back.substr(0, 3), "xyc");
  EXPECT_TRUE(device.CopyIn(*stream, Copy2d{}).ok());
}

TEST(DeviceCpuTest, EventsMeasureTime) {
  Device& device = TestCpuDevice();
  const std::unique_ptr<Stream> stream = *device.CreateStream();
  const std::unique_ptr<Event> from = *device.CreateEvent();
  const std::unique_ptr<Event> to = *device.CreateEvent();
  EXPECT_FALSE(device.Elapsed(*from, *to).ok());
  ASSERT_TRUE(device.Record(*stream, *from).ok());
  ASSERT_TRUE(device.Record(*stream, *to).ok());
  EXPECT_TRUE(device.Wait(*to, Nanos(0)).ok());
  EXPECT_GE(*device.Elapsed(*from, *to), Nanos(0));
}

TEST(DeviceCpuTest, RefusesPlansOfOthers) {
  Device& device = TestCpuDevice();
  const std::unique_ptr<Stream> stream = *device.CreateStream();
  Product product({.m = 2, .n = 2, .k = 2}, {});
  const GemmProblem problem = product.Prepare();
  Plan plan = *ChoosePlan(device.plan_limits(), {&problem, 1});
  plan.kernel = device.info().backend == "plain" ? KernelId::kCpuOnednnFp32 : KernelId::kCpuPlain;
  EXPECT_TRUE(absl::IsInvalidArgument(device.Launch(*stream, plan, {&problem, 1})));
  plan = *ChoosePlan(device.plan_limits(), {&problem, 1});
  EXPECT_TRUE(absl::IsInvalidArgument(device.Launch(*stream, plan, {})));
}

TEST(DeviceCpuTest, EveryKernelThatItNamesRuns) {
  Device& device = TestCpuDevice();
  const std::unique_ptr<Stream> stream = *device.CreateStream();
  Product product({.m = 45, .n = 70, .k = 270}, {.a_transposed = true});
  for (KernelId kernel : device.plan_limits().kernels) {
    const GemmProblem problem = product.Prepare();
    const Plan plan = *ChoosePlan({.kernels = {kernel}}, {&problem, 1});
    ASSERT_TRUE(device.Launch(*stream, plan, {&problem, 1}).ok()) << plan.ToString();
    product.ExpectRight();
  }
}

}  // namespace
}  // namespace tcgemm
