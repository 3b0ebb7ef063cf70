// The exit codes that need a device that misbehaves. Each test is a process of its own: signals,
// and ends that do not return.
#include "server/main/server.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "server/main/logging.h"
#include "server/main/signals.h"
#include "tcgemm/v1/matmul.grpc.pb.h"
#include "tests/kernels/fake_device.h"

namespace tcgemm {
namespace {

using ::testing::ExitedWithCode;

ServerOptions SmallServer() {
  ServerOptions options;
  options.listen = {"unix:" + ::testing::TempDir() + "tcgemm-server-test-" +
                    std::to_string(getpid())};
  options.metrics_listen = "127.0.0.1:0";
  options.max_message_bytes = 1 << 20;
  options.queue_bytes = 16 << 20;
  options.pinned_bytes = 16 << 20;
  return options;
}

// What a test does to a server that serves, from a thread of its own.
struct Script {
  FakeDevice* device;
  std::unique_ptr<v1::MatmulService::Stub> stub;

  v1::GetServerInfoResponse Info() const {
    v1::GetServerInfoResponse info;
    grpc::ClientContext context;
    context.set_wait_for_ready(true);
    stub->GetServerInfo(&context, {}, &info);
    return info;
  }
  // 1×1×1; whatever comes of it.
  void Call() const {
    v1::MatmulRequest request;
    for (v1::Operand* operand : {request.mutable_a(), request.mutable_b()}) {
      operand->set_rows(1);
      operand->set_cols(1);
      operand->set_dtype(v1::BF16);
      operand->set_inline_(std::string("\x80\x3f", 2));
    }
    v1::MatmulResponse response;
    grpc::ClientContext context;
    stub->Matmul(&context, request, &response);
  }
  void CallWithoutWaiting() const {
    std::thread([this] { Call(); }).detach();
  }
  void HoldOneCall() const {
    device->Hold(FakeOp::kLaunch);
    CallWithoutWaiting();
    device->AwaitHeld(FakeOp::kLaunch);
  }
  void Terminate() const { kill(getpid(), SIGTERM); }
  void TerminateAndAwaitDrain() const {
    Terminate();
    while (!Info().draining()) {
    }
  }
};

// Serves with a fake device, runs `play` once READY, and ends the process with the server's code.
[[noreturn]] void ServeAndExit(const ServerOptions& options,
                               const std::function<void(const Script&)>& play,
                               const std::function<void(FakeDevice&)>& prepare = nullptr,
                               FakeDeviceOptions fake_options = {}) {
  fake_options.unified_memory = true;
  fake_options.pitch_alignment = 1;
  BlockSignals();
  StartLogging("info", "text");
  std::atomic<FakeDevice*> device{nullptr};
  std::thread player([&] {
    device.wait(nullptr);
    const Script script{.device = device.load(),
                        .stub = v1::MatmulService::NewStub(grpc::CreateChannel(
                            options.listen[0], grpc::InsecureChannelCredentials()))};
    while (!script.Info().ready()) {
    }
    play(script);
    pause();  // the script is what detached calls use
  });
  const int code =
      RunServer(options, [&](const ServerOptions&) -> absl::StatusOr<std::unique_ptr<Device>> {
        auto fake = std::make_unique<FakeDevice>(fake_options);
        if (prepare != nullptr) prepare(*fake);
        device.store(fake.get());
        device.notify_all();
        return fake;
      });
  std::_Exit(code);
}

[[noreturn]] void RunAndExit(const ServerOptions& options) {
  BlockSignals();
  StartLogging("info", "text");
  std::_Exit(RunServer(options));
}

class ServerDeathTest : public ::testing::Test {
 protected:
  ServerDeathTest() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
  ServerOptions options_ = SmallServer();
};

TEST_F(ServerDeathTest, IdleDrainIsZeroAndTheLastLineCounts) {
  EXPECT_EXIT(ServeAndExit(options_,
                           [](const Script& script) {
                             script.Call();
                             script.Terminate();
                           }),
              ExitedWithCode(kDrained), "ended: admitted 1, completed 1, failed 0, refused 0\n$");
}

TEST_F(ServerDeathTest, StraySignalsOfOursEndNothing) {
  EXPECT_EXIT(ServeAndExit(options_,
                           [](const Script& script) {
                             NotifyMainThread();
                             script.Call();
                             script.Terminate();
                           }),
              ExitedWithCode(kDrained), "completed 1,");
}

TEST_F(ServerDeathTest, ADeviceLostWhileServingIsFive) {
  EXPECT_EXIT(ServeAndExit(options_,
                           [](const Script& script) {
                             script.device->Die(absl::InternalError("it fell off the bus"));
                             script.CallWithoutWaiting();
                           }),
              ExitedWithCode(kDeviceLost), "device is lost: .*fell off the bus");
}

TEST_F(ServerDeathTest, ADeviceLostDuringTheDelayIsFive) {
  options_.drain_delay = std::chrono::hours(1);
  EXPECT_EXIT(ServeAndExit(options_,
                           [](const Script& script) {
                             script.TerminateAndAwaitDrain();
                             script.device->Die(absl::InternalError("it fell off the bus"));
                             script.CallWithoutWaiting();
                           }),
              ExitedWithCode(kDeviceLost), "device is lost");
}

TEST_F(ServerDeathTest, ADeviceLostDuringTheDrainIsFive) {
  options_.drain_timeout = std::chrono::hours(1);
  EXPECT_EXIT(ServeAndExit(options_,
                           [](const Script& script) {
                             script.HoldOneCall();
                             script.TerminateAndAwaitDrain();
                             script.device->Die(absl::InternalError("it fell off the bus"));
                             script.device->Release(FakeOp::kLaunch);
                           }),
              ExitedWithCode(kDeviceLost), "device is lost");
}

TEST_F(ServerDeathTest, ADrainThatTimesOutIsSixThoughTheKernelHangs) {
  options_.drain_timeout = std::chrono::milliseconds(50);
  EXPECT_EXIT(ServeAndExit(options_,
                           [](const Script& script) {
                             script.HoldOneCall();
                             script.Terminate();
                           }),
              ExitedWithCode(kDrainTimedOut), "drain timed out.*\n.*admitted 1, completed 0");
}

TEST_F(ServerDeathTest, OneMoreSignalEndsTheWaiting) {
  options_.drain_timeout = std::chrono::hours(1);
  EXPECT_EXIT(ServeAndExit(options_,
                           [](const Script& script) {
                             script.HoldOneCall();
                             script.TerminateAndAwaitDrain();
                             script.Terminate();
                           }),
              ExitedWithCode(kDrainTimedOut), "drain timed out");
}

TEST_F(ServerDeathTest, AKernelThatHangsIsSeven) {
  options_.watchdog_min = std::chrono::milliseconds(20);
  EXPECT_EXIT(ServeAndExit(options_, [](const Script& script) { script.HoldOneCall(); }),
              ExitedWithCode(kKernelWatchdog),
              "the device hangs: watchdog: a batch of 1 .*\n.*admitted 1, completed 0, failed 1");
}

TEST_F(ServerDeathTest, AKernelThatHangsDuringTheDrainIsSeven) {
  options_.drain_timeout = std::chrono::hours(1);
  options_.watchdog_min = std::chrono::milliseconds(300);
  EXPECT_EXIT(ServeAndExit(options_,
                           [](const Script& script) {
                             script.HoldOneCall();
                             script.Terminate();
                           }),
              ExitedWithCode(kKernelWatchdog), "the device hangs");
}

TEST_F(ServerDeathTest, AKernelThatHangsInTheSelfTestIsFour) {
  options_.watchdog_min = std::chrono::milliseconds(20);
  const auto never = [](const Script&) { std::_Exit(99); };
  EXPECT_EXIT(
      ServeAndExit(options_, never, [](FakeDevice& device) { device.Hold(FakeOp::kLaunch); }),
      ExitedWithCode(kNoDevice), "self-test of device fake failed: .*watchdog");
}

TEST_F(ServerDeathTest, ABatchBeyondTheDeviceIsTwo) {
  options_.max_batch = 1024;
  const auto never = [](const Script&) { std::_Exit(99); };
  EXPECT_EXIT(ServeAndExit(options_, never, nullptr, {.max_problems = 255}),
              ExitedWithCode(kBadConfig), "--max-batch is 1024, but fake takes at most 255");
}

TEST_F(ServerDeathTest, AFailedSelfTestIsFour) {
  const auto never = [](const Script&) { std::_Exit(99); };
  EXPECT_EXIT(ServeAndExit(options_, never,
                           [](FakeDevice& device) {
                             device.FailNext(FakeOp::kLaunch, absl::InternalError("bad chip"));
                           }),
              ExitedWithCode(kNoDevice), "self-test of device fake failed: .*bad chip");
}

TEST_F(ServerDeathTest, NoDeviceIsFour) {
  options_.device = "cuda:99";
  EXPECT_EXIT(RunAndExit(options_), ExitedWithCode(kNoDevice), "--device cuda:99: ");
}

TEST_F(ServerDeathTest, BudgetsBeyondTheMachineAreTwo) {
  options_.queue_bytes = uint64_t{1} << 60;
  EXPECT_EXIT(RunAndExit(options_), ExitedWithCode(kBadConfig), "--queue-bytes");
}

}  // namespace
}  // namespace tcgemm
