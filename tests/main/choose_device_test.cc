#include "server/main/choose_device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "server/main/logging.h"
#include "tests/kernels/fake_device.h"

namespace tcgemm {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A machine with `count` GPUs, of which none can be created when `broken`.
struct Gpus {
  int count = 0;
  bool broken = false;
  std::vector<int> asked;
  std::vector<int> created;

  GpuBackend Backend() {
    return {.usable =
                [this](int ordinal) {
                  asked.push_back(ordinal);
                  if (ordinal < count) return absl::OkStatus();
                  return absl::FailedPreconditionError("no usable GPU: no driver");
                },
            .create = [this](int ordinal) -> absl::StatusOr<std::unique_ptr<Device>> {
              created.push_back(ordinal);
              if (broken) return absl::InternalError("out of sorts");
              return std::make_unique<FakeDevice>(
                  FakeDeviceOptions{.name = "cuda:" + std::to_string(ordinal)});
            }};
  }
};

struct Chosen {
  absl::Status status;
  std::string name;
  std::string log;
};

Chosen Choose(const std::string& device, Gpus& gpus) {
  ServerOptions options;
  options.device = device;
  options.cpu_backend = "plain";
  options.cpu_threads = 1;
  ::testing::internal::CaptureStderr();
  StartLogging("info", "text");
  const auto created = ChooseDevice(options, gpus.Backend());
  return {created.status(), created.ok() ? (*created)->info().name : "",
          ::testing::internal::GetCapturedStderr()};
}

TEST(ChooseDeviceTest, AutoTakesTheFirstGpu) {
  Gpus gpus{.count = 2};
  const Chosen chosen = Choose("auto", gpus);
  EXPECT_EQ(chosen.name, "cuda:0");
  EXPECT_EQ(chosen.log, "");
}

TEST(ChooseDeviceTest, AutoFallsBackWithOneLine) {
  for (Gpus gpus : {Gpus{.count = 0}, Gpus{.count = 1, .broken = true}}) {
    const Chosen chosen = Choose("auto", gpus);
    EXPECT_EQ(chosen.name, "cpu");
    EXPECT_EQ(std::count(chosen.log.begin(), chosen.log.end(), '\n'), 1);
    EXPECT_THAT(chosen.log,
                HasSubstr(gpus.broken ? "running on the CPU: out of sorts"
                                      : "running on the CPU: no usable GPU: no driver"));
  }
}

TEST(ChooseDeviceTest, CpuAsksForNoGpu) {
  Gpus gpus{.count = 1};
  EXPECT_EQ(Choose("cpu", gpus).name, "cpu");
  EXPECT_THAT(gpus.asked, IsEmpty());
}

TEST(ChooseDeviceTest, AGpuByNumber) {
  Gpus gpus{.count = 2};
  EXPECT_EQ(Choose("cuda", gpus).name, "cuda:0");
  EXPECT_EQ(Choose("cuda:1", gpus).name, "cuda:1");
  EXPECT_THAT(gpus.created, ElementsAre(0, 1));
}

TEST(ChooseDeviceTest, NoSuchGpuIsAnErrorThatNamesIt) {
  Gpus gpus{.count = 2};
  for (const std::string device : {"cuda:2", "cuda:99999999999"}) {
    const Chosen chosen = Choose(device, gpus);
    EXPECT_TRUE(absl::IsFailedPrecondition(chosen.status));
    EXPECT_THAT(std::string(chosen.status.message()), HasSubstr("--device " + device + ": "));
  }
  EXPECT_THAT(gpus.created, IsEmpty());
  Gpus broken{.count = 1, .broken = true};
  EXPECT_THAT(std::string(Choose("cuda", broken).status.message()),
              HasSubstr("--device cuda: out of sorts"));
}

}  // namespace
}  // namespace tcgemm
