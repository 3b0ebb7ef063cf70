#include "tests/engine/test_device.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iterator>
#include <utility>

#include "base/status_macros.h"
#include "kernels/tile/element_epilogue.h"
#include "matrix/bf16.h"
#include "matrix/matrix.h"
#include "tests/engine/test_stream.h"

namespace tcgemm {

void TestDeviceControl::Hold() {
  MutexLock lock(&mutex_);
  held_ = true;
}

void TestDeviceControl::Release() {
  MutexLock lock(&mutex_);
  held_ = false;
  cv_.NotifyAll();
}

void TestDeviceControl::WaitForLaunches(int count) {
  MutexLock lock(&mutex_);
  while (static_cast<int>(batch_sizes_.size()) < count) cv_.Wait(&mutex_);
}

int TestDeviceControl::launches() const {
  MutexLock lock(&mutex_);
  return static_cast<int>(batch_sizes_.size());
}

std::vector<int> TestDeviceControl::batch_sizes() const {
  MutexLock lock(&mutex_);
  return batch_sizes_;
}

void TestDeviceControl::FailNext(Operation operation) {
  MutexLock lock(&mutex_);
  fail_next_.push_back(operation);
}

void TestDeviceControl::Break() {
  MutexLock lock(&mutex_);
  broken_ = true;
}

bool TestDeviceControl::broken() const {
  MutexLock lock(&mutex_);
  return broken_;
}

void TestDeviceControl::Hang() {
  MutexLock lock(&mutex_);
  hung_ = true;
}

void TestDeviceControl::Expire() {
  MutexLock lock(&mutex_);
  expired_ = true;
  cv_.NotifyAll();
}

Nanos TestDeviceControl::waited() const {
  MutexLock lock(&mutex_);
  return waited_;
}

bool TestDeviceControl::WaitInVain(Nanos limit) {
  MutexLock lock(&mutex_);
  if (!hung_) return false;
  while (!expired_) cv_.Wait(&mutex_);
  waited_ += limit;
  return true;
}

std::map<const void*, size_t> TestDeviceControl::registered() const {
  MutexLock lock(&mutex_);
  return registered_;
}

void TestDeviceControl::HoldRegister() {
  MutexLock lock(&mutex_);
  register_held_ = true;
}

void TestDeviceControl::AwaitRegister() {
  MutexLock lock(&mutex_);
  while (!registering_) cv_.Wait(&mutex_);
}

void TestDeviceControl::ReleaseRegister() {
  MutexLock lock(&mutex_);
  register_held_ = false;
  cv_.NotifyAll();
}

void TestDeviceControl::AddRegistered(const void* data, size_t bytes) {
  MutexLock lock(&mutex_);
  registering_ = true;
  cv_.NotifyAll();
  while (register_held_) cv_.Wait(&mutex_);
  registering_ = false;
  if (!registered_.emplace(data, bytes).second) violation_ = "registered twice";
}

void TestDeviceControl::RemoveRegistered(const void* data) {
  MutexLock lock(&mutex_);
  if (registered_.erase(data) == 0) violation_ = "unregistered, but never registered";
}

std::string TestDeviceControl::violation() const {
  MutexLock lock(&mutex_);
  return violation_;
}

absl::Status TestDeviceControl::Check(Operation operation) {
  MutexLock lock(&mutex_);
  if (broken_) return absl::InternalError("test device: context lost");
  const auto it = std::find(fail_next_.begin(), fail_next_.end(), operation);
  if (it != fail_next_.end()) {
    fail_next_.erase(it);
    return absl::InternalError("test device: told to fail");
  }
  if (std::bernoulli_distribution(options_.failure_rate)(random_)) {
    return absl::InternalError("test device: failed at random");
  }
  return absl::OkStatus();
}

void TestDeviceControl::OnLaunch(absl::Span<const GemmProblem> batch) {
  MutexLock lock(&mutex_);
  batch_sizes_.push_back(static_cast<int>(batch.size()));
  workspaces_ += batch[0].workspace.bytes > 0 ? 1 : 0;
  cv_.NotifyAll();
}

void TestDeviceControl::WaitWhileHeld() {
  MutexLock lock(&mutex_);
  while (held_) cv_.Wait(&mutex_);
}

void TestDeviceControl::AddDeviceMemory(const std::byte* data, size_t bytes) {
  MutexLock lock(&mutex_);
  device_memory_.emplace(data, bytes);
}

bool TestDeviceControl::IsDeviceMemory(const void* data) const {
  MutexLock lock(&mutex_);
  const auto* const at = static_cast<const std::byte*>(data);
  const auto it = device_memory_.upper_bound(at);
  return it != device_memory_.begin() && at < std::prev(it)->first + std::prev(it)->second;
}

void TestDeviceControl::Violation(const std::string& what) {
  MutexLock lock(&mutex_);
  if (violation_.empty()) violation_ = what;
}

namespace {

using Operation = TestDeviceControl::Operation;

float Read(const MatrixView& view, int64_t i, int64_t j) {
  return ToFloat(static_cast<const Bf16*>(view.data)[view.IndexOf(i, j)]);
}

// The steps of matrix/epilogue.h, one by one.
float Finish(const GemmProblem& problem, float sum, int64_t i, int64_t j) {
  const Epilogue& epilogue = problem.epilogue;
  if (epilogue.is_default()) return sum;
  const bool column = BiasIsColumn(epilogue.bias, {.m = problem.d.rows, .n = problem.d.cols});
  const ElementEpilogue element = {.alpha = epilogue.alpha,
                                   .beta = epilogue.beta,
                                   .reads_c = epilogue.reads_c(),
                                   .has_bias = epilogue.has_bias(),
                                   .activation = epilogue.activation};
  const double c = element.reads_c ? ElementAt(epilogue.c, i, j) : 0;
  const double bias =
      element.has_bias ? ElementAt(epilogue.bias, column ? i : 0, column ? 0 : j) : 0;
  return element.Apply(sum, static_cast<float>(c), static_cast<float>(bias));
}

void Multiply(const GemmProblem& problem, bool wrong) {
  const GemmShape shape = problem.shape();
  // A launch may use it: what lies there by mistake is lost.
  if (problem.workspace.bytes > 0)
    std::memset(problem.workspace.data, 0xee, problem.workspace.bytes);
  for (int64_t i = 0; i < shape.m; ++i) {
    for (int64_t j = 0; j < shape.n; ++j) {
      float sum = wrong && i == shape.m - 1 && j == 0 ? 1e6f : 0;
      for (int64_t k = 0; k < problem.summed_k(); ++k) {
        sum += Read(problem.a, i, k) * Read(problem.b, k, j);
      }
      sum = Finish(problem, sum, i, j);
      if (!std::isfinite(sum) && problem.nonfinite != nullptr) *problem.nonfinite = 1;
      const int64_t at = problem.d.IndexOf(i, j);
      if (problem.d.dtype == DType::kFp32) {
        static_cast<float*>(problem.d.data)[at] = sum;
      } else {
        static_cast<Bf16*>(problem.d.data)[at] = ToBf16(sum);
      }
    }
  }
}

void CopyRows(const Copy2d& copy) {
  for (int64_t row = 0; row < copy.rows; ++row) {
    std::memcpy(static_cast<std::byte*>(copy.destination) + row * copy.destination_pitch,
                static_cast<const std::byte*>(copy.source) + row * copy.source_pitch,
                copy.row_bytes);
  }
}

class TestDevice final : public Device {
 public:
  explicit TestDevice(std::shared_ptr<TestDeviceControl> control)
      : control_(std::move(control)),
        limits_{.kernels = {KernelId::kCpuPlain}, .max_problems = options().max_problems},
        info_{.name = "fake",
              .description = "the tests' device",
              .backend = "fake",
              .unified_memory = options().unified_memory,
              .reads_pinned = options().reads_pinned,
              .pitch_alignment = options().pitch_alignment,
              .flops_per_second = options().flops_per_second} {}

  const DeviceInfo& info() const override { return info_; }
  const PlanLimits& plan_limits() const override { return limits_; }
  bool healthy() const override { return !control_->broken(); }

  absl::StatusOr<MemoryBlock> AllocatePinned(size_t bytes) override { return Allocate(bytes); }
  absl::StatusOr<MemoryBlock> AllocateDevice(size_t bytes) override {
    if (info_.unified_memory) control_->Violation("device memory on a unified device");
    TCGEMM_ASSIGN_OR_RETURN(MemoryBlock block, Allocate(bytes));
    control_->AddDeviceMemory(block.data(), bytes);
    return block;
  }

  absl::Status RegisterHost(void* data, size_t bytes) override {
    TCGEMM_RETURN_IF_ERROR(control_->Check(Operation::kRegister));
    control_->AddRegistered(data, bytes);
    return absl::OkStatus();
  }
  absl::Status UnregisterHost(void* data) override {
    control_->RemoveRegistered(data);
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<Stream>> CreateStream() override {
    return std::make_unique<TestStream>();
  }
  absl::StatusOr<std::unique_ptr<Event>> CreateEvent() override {
    return std::make_unique<TestEvent>();
  }

  absl::Status CopyIn(Stream& stream, const Copy2d& copy) override {
    TCGEMM_RETURN_IF_ERROR(control_->Check(Operation::kCopyIn));
    ExpectDevice(copy.destination, true, "CopyIn to host memory");
    ExpectDevice(copy.source, false, "CopyIn from device memory");
    Enqueue(stream, [copy] { CopyRows(copy); });
    return absl::OkStatus();
  }

  absl::Status CopyOut(Stream& stream, const Copy2d& copy) override {
    TCGEMM_RETURN_IF_ERROR(control_->Check(Operation::kCopyOut));
    ExpectDevice(copy.source, true, "CopyOut from host memory");
    ExpectDevice(copy.destination, false, "CopyOut to device memory");
    Enqueue(stream, [copy] { CopyRows(copy); });
    return absl::OkStatus();
  }

  absl::Status Launch(Stream& stream, const Plan& plan,
                      absl::Span<const GemmProblem> problems) override {
    control_->OnLaunch(problems);
    TCGEMM_RETURN_IF_ERROR(control_->Check(Operation::kLaunch));
    if (plan.problems != static_cast<int>(problems.size())) control_->Violation("wrong plan");
    for (const GemmProblem& problem : problems) CheckProblem(problem);
    maps_.hits += 2 * static_cast<int64_t>(problems.size());
    maps_.misses += 1;
    std::vector<GemmProblem> batch(problems.begin(), problems.end());
    Enqueue(stream, [this, batch = std::move(batch)] {
      control_->WaitWhileHeld();
      for (const GemmProblem& problem : batch) Multiply(problem, options().wrong);
    });
    return absl::OkStatus();
  }

  absl::Status Record(Stream& stream, Event& event) override {
    if (absl::Status status = control_->Check(Operation::kRecord); !status.ok()) {
      // Nobody can wait for it any more, so it must not run later, on memory that went back.
      auto& failed = static_cast<TestStream&>(stream);
      failed.Drop();
      for (TestStream* const other : failed.waits) other->Drop();
      return status;
    }
    auto& recorded = static_cast<TestEvent&>(event);
    recorded.stream = &static_cast<TestStream&>(stream);
    recorded.position = recorded.stream->end();
    return absl::OkStatus();
  }

  absl::Status WaitFor(Stream& stream, Event& event) override {
    auto& waiting = static_cast<TestStream&>(stream);
    const TestEvent awaited = static_cast<TestEvent&>(event);
    waiting.waits.push_back(awaited.stream);
    awaited.stream->waits.push_back(&waiting);
    Enqueue(stream, [awaited] { awaited.stream->RunUntil(awaited.position); });
    return absl::OkStatus();
  }

  absl::Status Wait(Event& event, Nanos limit) override {
    if (control_->WaitInVain(limit)) return absl::DeadlineExceededError("test device: hangs");
    auto& recorded = static_cast<TestEvent&>(event);
    // The work is done even if waiting is said to fail: a later batch must not find it here.
    if (recorded.position != recorded.stream->end()) control_->Violation("early wait");
    recorded.stream->RunUntil(recorded.position);
    return control_->Check(Operation::kWait);
  }

  TensorMapCounts tensor_map_counts() const override { return maps_; }

  absl::StatusOr<Nanos> Elapsed(Event& /*from*/, Event& /*to*/) override {
    TCGEMM_RETURN_IF_ERROR(control_->Check(Operation::kElapsed));
    return kTestDeviceElapsed;
  }

 private:
  const TestDeviceOptions& options() const { return control_->options(); }

  static absl::StatusOr<MemoryBlock> Allocate(size_t bytes) {
    void* const data = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    if (data == nullptr) return absl::ResourceExhaustedError("the test device is full");
    std::memset(data, 0xff, bytes);  // NaN
    return MemoryBlock(data, bytes, [](void* p) { std::free(p); });
  }

  void Enqueue(Stream& stream, std::function<void()> operation) {
    if (options().synchronous) return operation();
    static_cast<TestStream&>(stream).pending.push_back(std::move(operation));
  }

  void ExpectDevice(const void* data, bool device, const char* what) {
    if (control_->IsDeviceMemory(data) != device) control_->Violation(what);
  }

  void CheckEpilogue(const Epilogue& epilogue, bool in_place) {
    if (epilogue.has_bias() && !in_place) {
      ExpectDevice(epilogue.bias.data, true, "Launch on a host's bias");
    }
    if (!epilogue.reads_c()) return;
    if (!in_place) ExpectDevice(epilogue.c.data, true, "Launch on a C in host memory");
    if (epilogue.c.ld % (in_place ? 2 : info_.pitch_alignment) != 0) {
      control_->Violation("pitch of C");
    }
  }

  void CheckProblem(const GemmProblem& problem) {
    const absl::Status valid = ValidateProblem(problem);
    if (!valid.ok()) control_->Violation(valid.ToString());
    if (problem.nonfinite == nullptr) control_->Violation("no flag");
    if (info_.unified_memory) return;
    // Only what the device may read from the host lies there, and then without D's padding.
    const bool in_place = info_.reads_pinned && !control_->IsDeviceMemory(problem.nonfinite);
    for (const void* data : {problem.a.data, problem.b.data, AsConst(problem.d).data,
                             static_cast<const void*>(problem.nonfinite)}) {
      if (!in_place) ExpectDevice(data, true, "Launch on host memory");
    }
    CheckEpilogue(problem.epilogue, in_place);
    for (const int64_t ld : {problem.a.ld, problem.b.ld}) {
      if (ld % info_.pitch_alignment != 0) control_->Violation("pitch");
    }
    const auto d_unit = static_cast<int64_t>(16 / DTypeSize(problem.d.dtype));
    if (problem.d.ld % (in_place ? d_unit : info_.pitch_alignment) != 0) {
      control_->Violation("pitch of D");
    }
  }

  const std::shared_ptr<TestDeviceControl> control_;
  const PlanLimits limits_;
  const DeviceInfo info_;
  TensorMapCounts maps_;  // Launch's thread reads it too
};

}  // namespace

std::unique_ptr<Device> CreateTestDevice(std::shared_ptr<TestDeviceControl> control) {
  return std::make_unique<TestDevice>(std::move(control));
}

}  // namespace tcgemm
