#include "server/main/failpoint.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "server/main/logging.h"

namespace tcgemm {
namespace {

// Blocks for `time`: what a wait for an event that never comes looks like.
void PassTime(Nanos time) {
  const TimePoint end = Clock::Real()->Now() + std::min<Nanos>(time, std::chrono::hours(8760));
  Mutex mutex;
  CondVar never;
  MutexLock lock(&mutex);
  while (Clock::Real()->Now() < end) never.WaitUntil(&mutex, end);
}

class FailingDevice final : public Device {
 public:
  FailingDevice(const Failpoint& failpoint, std::unique_ptr<Device> device)
      : failpoint_(failpoint), device_(std::move(device)) {}

  const DeviceInfo& info() const override { return device_->info(); }
  const PlanLimits& plan_limits() const override { return device_->plan_limits(); }
  bool healthy() const override { return !lost_.load() && device_->healthy(); }
  TensorMapCounts tensor_map_counts() const override { return device_->tensor_map_counts(); }

  absl::StatusOr<MemoryBlock> AllocatePinned(size_t bytes) override {
    return device_->AllocatePinned(bytes);
  }
  absl::StatusOr<MemoryBlock> AllocateForLater(size_t bytes) override {
    return device_->AllocateForLater(bytes);
  }
  absl::StatusOr<MemoryBlock> AllocateDevice(size_t bytes) override {
    return device_->AllocateDevice(bytes);
  }
  absl::Status RegisterHost(void* data, size_t bytes) override {
    return device_->RegisterHost(data, bytes);
  }
  absl::Status UnregisterHost(void* data) override { return device_->UnregisterHost(data); }
  absl::StatusOr<std::unique_ptr<Stream>> CreateStream() override {
    return device_->CreateStream();
  }
  absl::StatusOr<std::unique_ptr<Event>> CreateEvent() override { return device_->CreateEvent(); }

  absl::Status CopyIn(Stream& stream, const Copy2d& copy) override {
    TCGEMM_RETURN_IF_ERROR(CheckAlive());
    return device_->CopyIn(stream, copy);
  }
  absl::Status CopyOut(Stream& stream, const Copy2d& copy) override {
    TCGEMM_RETURN_IF_ERROR(CheckAlive());
    return device_->CopyOut(stream, copy);
  }
  absl::Status Launch(Stream& stream, const Plan& plan,
                      absl::Span<const GemmProblem> problems) override {
    if (failpoint_.kind == Failpoint::Kind::kSelfTest) {
      return device_->Launch(stream, plan, WithoutLastStep(problems));
    }
    const auto is_marked = [this](const GemmProblem& p) { return p.shape() == failpoint_.shape; };
    if (std::any_of(problems.begin(), problems.end(), is_marked)) {
      (failpoint_.kind == Failpoint::Kind::kHangKernel ? hung_ : lost_).store(true);
    }
    TCGEMM_RETURN_IF_ERROR(CheckAlive());
    return hung_.load() ? absl::OkStatus() : device_->Launch(stream, plan, problems);
  }

  absl::Status Record(Stream& stream, Event& event) override {
    TCGEMM_RETURN_IF_ERROR(CheckAlive());
    return device_->Record(stream, event);
  }
  absl::Status Wait(Event& event, Nanos limit) override {
    if (!hung_.load()) {
      TCGEMM_RETURN_IF_ERROR(CheckAlive());
      return device_->Wait(event, limit);
    }
    PassTime(limit);
    return absl::DeadlineExceededError("failpoint: the kernel hangs");
  }
  absl::StatusOr<Nanos> Elapsed(Event& from, Event& to) override {
    TCGEMM_RETURN_IF_ERROR(CheckAlive());
    return device_->Elapsed(from, to);
  }

 private:
  absl::Status CheckAlive() const {
    if (!lost_.load()) return absl::OkStatus();
    return absl::InternalError("failpoint: a sticky error");
  }
  static std::vector<GemmProblem> WithoutLastStep(absl::Span<const GemmProblem> problems) {
    std::vector<GemmProblem> shorter(problems.begin(), problems.end());
    for (GemmProblem& problem : shorter) {
      if (problem.shape().k == 0) continue;
      --(problem.a.transposed ? problem.a.rows : problem.a.cols);
      --(problem.b.transposed ? problem.b.cols : problem.b.rows);
    }
    return shorter;
  }

  const Failpoint failpoint_;
  const std::unique_ptr<Device> device_;
  std::atomic<bool> hung_{false};
  std::atomic<bool> lost_{false};
};

}  // namespace

absl::StatusOr<Failpoint> ParseFailpoint(const std::string& text) {
  Failpoint failpoint;
  if (text.empty()) return failpoint;
  if (text == "self_test") {
    failpoint.kind = Failpoint::Kind::kSelfTest;
    return failpoint;
  }
  constexpr char kNvml[] = "nvml:/";
  if (text.rfind(kNvml, 0) == 0) {
    failpoint.kind = Failpoint::Kind::kNvml;
    failpoint.nvml_library = text.substr(sizeof(kNvml) - 2);
    return failpoint;
  }
  const size_t colon = text.find(':');
  const std::string name = text.substr(0, colon);
  if (name == "hang_kernel") failpoint.kind = Failpoint::Kind::kHangKernel;
  if (name == "sticky_error") failpoint.kind = Failpoint::Kind::kStickyError;
  long long sides[3] = {};
  int end = 0;
  const std::string shape = colon == std::string::npos ? "" : text.substr(colon + 1);
  const int read =
      std::sscanf(shape.c_str(), "%lldx%lldx%lld%n", &sides[0], &sides[1], &sides[2], &end);
  if (failpoint.kind == Failpoint::Kind::kNone || read != 3 ||
      static_cast<size_t>(end) != shape.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("TCGEMM_FAILPOINT is '", text,
                     "', must be hang_kernel:MxNxK, sticky_error:MxNxK, self_test or nvml:/path"));
  }
  failpoint.shape = {.m = sides[0], .n = sides[1], .k = sides[2]};
  return failpoint;
}

absl::StatusOr<Failpoint> FailpointFromEnvironment() {
  const char* const text = std::getenv("TCGEMM_FAILPOINT");
  return ParseFailpoint(text == nullptr ? "" : text);
}

std::unique_ptr<Device> WithFailpoint(const Failpoint& failpoint, std::unique_ptr<Device> device) {
  if (failpoint.kind == Failpoint::Kind::kNone) return device;
  if (failpoint.kind == Failpoint::Kind::kNvml) {
    Log(LogLevel::kWarning, "TCGEMM_FAILPOINT is set: the GPU telemetry is a test's");
    return device;
  }
  Log(LogLevel::kWarning, "TCGEMM_FAILPOINT is set: this server will fail on purpose");
  return std::make_unique<FailingDevice>(failpoint, std::move(device));
}

}  // namespace tcgemm
