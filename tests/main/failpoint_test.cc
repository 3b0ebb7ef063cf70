#include "server/main/failpoint.h"

#include <gtest/gtest.h>

#include <utility>

#include "kernels/device_cpu.h"
#include "tests/kernels/product.h"

namespace tcgemm {
namespace {

std::unique_ptr<Device> Failing(const std::string& text) {
  return WithFailpoint(
      ParseFailpoint(text).value(),
      CreateCpuDevice(CpuBackend::kPlain, std::make_unique<SerialRunner>()).value());
}

absl::Status LaunchOne(Device& device, Stream& stream, const GemmProblem& problem) {
  const Plan plan = ChoosePlan(device.plan_limits(), {&problem, 1}).value();
  return device.Launch(stream, plan, {&problem, 1});
}

TEST(FailpointTest, Parses) {
  EXPECT_EQ(ParseFailpoint("")->kind, Failpoint::Kind::kNone);
  EXPECT_EQ(ParseFailpoint("self_test")->kind, Failpoint::Kind::kSelfTest);
  const Failpoint hang = ParseFailpoint("hang_kernel:7x8x9").value();
  EXPECT_EQ(hang.kind, Failpoint::Kind::kHangKernel);
  EXPECT_EQ(hang.shape, (GemmShape{.m = 7, .n = 8, .k = 9}));
  EXPECT_EQ(ParseFailpoint("sticky_error:1x1x1")->kind, Failpoint::Kind::kStickyError);
  const Failpoint nvml = ParseFailpoint("nvml:/lib/fake.so").value();
  EXPECT_EQ(nvml.kind, Failpoint::Kind::kNvml);
  EXPECT_EQ(nvml.nvml_library, "/lib/fake.so");
  for (const char* bad :
       {"nvml:", "nvml:fake.so", "hang", "hang_kernel", "hang_kernel:", "hang_kernel:7x8",
        "nonsense:1x1x1", "hang_kernel:7x8x9x", "self_test:1x1x1"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParseFailpoint(bad).status())) << bad;
  }
}

TEST(FailpointTest, HangsFromTheMarkedShapeOn) {
  const std::unique_ptr<Device> device = Failing("hang_kernel:3x3x3");
  const std::unique_ptr<Stream> stream = *device->CreateStream();
  const std::unique_ptr<Event> event = *device->CreateEvent();
  Product right({.m = 2, .n = 2, .k = 2}, {});
  ASSERT_TRUE(LaunchOne(*device, *stream, right.Prepare()).ok());
  ASSERT_TRUE(device->Record(*stream, *event).ok());
  EXPECT_TRUE(device->Wait(*event, Nanos(0)).ok());
  right.ExpectRight();
  Product marked({.m = 3, .n = 3, .k = 3}, {});
  EXPECT_TRUE(LaunchOne(*device, *stream, marked.Prepare()).ok());
  EXPECT_TRUE(device->Record(*stream, *event).ok());
  EXPECT_TRUE(absl::IsDeadlineExceeded(device->Wait(*event, Nanos(1000))));
  EXPECT_TRUE(device->healthy());
}

TEST(FailpointTest, IsLostFromTheMarkedShapeOn) {
  const std::unique_ptr<Device> device = Failing("sticky_error:3x3x3");
  const std::unique_ptr<Stream> stream = *device->CreateStream();
  const std::unique_ptr<Event> event = *device->CreateEvent();
  Product right({.m = 2, .n = 2, .k = 2}, {});
  EXPECT_TRUE(LaunchOne(*device, *stream, right.Prepare()).ok());
  EXPECT_TRUE(device->healthy());
  Product marked({.m = 3, .n = 3, .k = 3}, {});
  EXPECT_TRUE(absl::IsInternal(LaunchOne(*device, *stream, marked.Prepare())));
  EXPECT_FALSE(device->healthy());
  EXPECT_TRUE(absl::IsInternal(device->Record(*stream, *event)));
  EXPECT_TRUE(absl::IsInternal(LaunchOne(*device, *stream, right.Prepare())));
}

TEST(FailpointTest, SelfTestComputesWrongly) {
  const std::unique_ptr<Device> device = Failing("self_test");
  const std::unique_ptr<Stream> stream = *device->CreateStream();
  uint16_t one = 0x3f80;
  float d = 5;
  GemmProblem problem;
  problem.a = {&one, 1, 1, 1, DType::kBf16, false};
  problem.b = {&one, 1, 1, 1, DType::kBf16, true};
  problem.d = {&d, 1, 1, 1, DType::kFp32, false};
  ASSERT_TRUE(LaunchOne(*device, *stream, problem).ok());
  EXPECT_EQ(d, 0.0f);  // not 1
}

}  // namespace
}  // namespace tcgemm
