#include "tests/kernels/fake_device.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/device_cpu.h"

namespace tcgemm {
namespace {

// For misuse by the test itself, where no Status can be returned.
[[noreturn]] void Die(const char* what) {
  std::fprintf(stderr, "FakeDevice: %s\n", what);
  std::abort();
}

}  // namespace

// The state outlives the event while a stream has yet to reach it, as in CUDA.
class FakeDevice::FakeEvent final : public Event {
 public:
  struct State {
    Mutex mutex;
    CondVar reached_cv;
    int64_t recorded ABSL_GUARDED_BY(mutex) = 0;  // times
    int64_t reached ABSL_GUARDED_BY(mutex) = 0;
    absl::Status status ABSL_GUARDED_BY(mutex);
    TimePoint time ABSL_GUARDED_BY(mutex);
  };
  const std::shared_ptr<State> state = std::make_shared<State>();
};

// A queue and the thread that works it off.
class FakeDevice::FakeStream final : public Stream {
 public:
  explicit FakeStream(FakeDevice* device) : device_(device), thread_([this] { Run(); }) {}

  ~FakeStream() override {
    {
      // The device's mutex too: the thread may be stopped there, looking at `closing`.
      MutexLock device_lock(&device_->mutex_);
      closing = true;
      --device_->live_streams_;
    }
    device_->changed_.NotifyAll();
    {
      MutexLock lock(&mutex_);
      stopping_ = true;
    }
    queued_.NotifyAll();
    thread_.join();
  }

  void Push(std::function<void()> work) {
    {
      MutexLock lock(&mutex_);
      queue_.push_back(std::move(work));
    }
    queued_.NotifyAll();
  }

  bool closing = false;  // guarded by the device's mutex

 private:
  void Run() {
    while (true) {
      std::function<void()> work;
      {
        MutexLock lock(&mutex_);
        while (queue_.empty() && !stopping_) queued_.Wait(&mutex_);
        if (queue_.empty()) return;
        work = std::move(queue_.front());
        queue_.pop_front();
      }
      work();
    }
  }

  FakeDevice* const device_;
  Mutex mutex_;
  CondVar queued_;
  std::deque<std::function<void()>> queue_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: it uses the rest
};

FakeDevice::FakeDevice(FakeDeviceOptions options)
    : options_(std::move(options)), random_(options_.seed) {
  absl::StatusOr<std::unique_ptr<Device>> cpu =
      CreateCpuDevice(CpuBackend::kPlain, std::make_unique<SerialRunner>());
  if (!cpu.ok()) tcgemm::Die(cpu.status().ToString().c_str());
  cpu_ = *std::move(cpu);
  MutexLock lock(&compute_mutex_);
  cpu_stream_ = *cpu_->CreateStream();
  limits_ = {.kernels = {KernelId::kCpuPlain}, .max_problems = options_.max_problems};
  info_.name = options_.name;
  info_.backend = "fake";
  info_.description = "fake device of the tests";
  info_.unified_memory = options_.unified_memory;
  info_.pitch_alignment = options_.pitch_alignment;
  info_.flops_per_second = options_.flops_per_second;
}

FakeDevice::~FakeDevice() {
  MutexLock lock(&mutex_);
  if (live_streams_ != 0) tcgemm::Die("a stream outlives its device");
  if (!allocations_.empty()) tcgemm::Die("memory outlives its device");
}

// --- Control ---

void FakeDevice::FailNext(FakeOp op, absl::Status status, int times) {
  MutexLock lock(&mutex_);
  for (int i = 0; i < times; ++i) op_state(op).failures.push_back(status);
}

void FakeDevice::FailAsync(FakeOp op, absl::Status status) {
  MutexLock lock(&mutex_);
  op_state(op).async_failures.push_back(std::move(status));
}

void FakeDevice::Die(absl::Status status) {
  MutexLock lock(&mutex_);
  sticky_.Update(status);
}

void FakeDevice::Hold(FakeOp op) {
  MutexLock lock(&mutex_);
  op_state(op).held = true;
  op_state(op).passes = 0;
}

void FakeDevice::Release(FakeOp op) {
  MutexLock lock(&mutex_);
  op_state(op).held = false;
  changed_.NotifyAll();
}

void FakeDevice::ReleaseOne(FakeOp op) {
  MutexLock lock(&mutex_);
  ++op_state(op).passes;
  changed_.NotifyAll();
}

void FakeDevice::AwaitHeld(FakeOp op, int streams) {
  MutexLock lock(&mutex_);
  while (op_state(op).waiting < streams) changed_.Wait(&mutex_);
}

// --- What happened ---

int64_t FakeDevice::calls(FakeOp op) const {
  MutexLock lock(&mutex_);
  return ops_[static_cast<int>(op)].calls;
}

std::vector<int> FakeDevice::batch_sizes() const {
  MutexLock lock(&mutex_);
  return batch_sizes_;
}

std::vector<GemmShape> FakeDevice::shapes() const {
  MutexLock lock(&mutex_);
  return shapes_;
}

int64_t FakeDevice::launches_done() const {
  MutexLock lock(&mutex_);
  return launches_done_;
}

void FakeDevice::AwaitLaunchesDone(int64_t count) {
  MutexLock lock(&mutex_);
  while (launches_done_ < count) changed_.Wait(&mutex_);
}

size_t FakeDevice::pinned_bytes() const {
  MutexLock lock(&mutex_);
  return allocated_bytes_[static_cast<int>(MemoryKind::kPinned)];
}

size_t FakeDevice::device_bytes() const {
  MutexLock lock(&mutex_);
  return allocated_bytes_[static_cast<int>(MemoryKind::kDevice)];
}

size_t FakeDevice::registered_bytes() const {
  MutexLock lock(&mutex_);
  return allocated_bytes_[static_cast<int>(MemoryKind::kRegistered)];
}

bool FakeDevice::healthy() const {
  MutexLock lock(&mutex_);
  return sticky_.ok();
}

// --- Machinery ---

absl::Status FakeDevice::Begin(FakeOp op) {
  MutexLock lock(&mutex_);
  OpState& state = op_state(op);
  ++state.calls;
  if (!sticky_.ok()) return sticky_;
  if (!state.failures.empty()) {
    absl::Status status = std::move(state.failures.front());
    state.failures.pop_front();
    return status;
  }
  if (options_.failure_probability > 0 &&
      std::uniform_real_distribution<double>()(random_) < options_.failure_probability) {
    return absl::InternalError(absl::StrCat("random failure of operation ", static_cast<int>(op)));
  }
  return absl::OkStatus();
}

void FakeDevice::Enqueue(Stream& stream, FakeOp op, std::function<absl::Status()> work) {
  absl::Status planned;
  {
    MutexLock lock(&mutex_);
    std::deque<absl::Status>& failures = op_state(op).async_failures;
    if (!failures.empty()) {
      planned = std::move(failures.front());
      failures.pop_front();
    }
  }
  FakeStream& fake = static_cast<FakeStream&>(stream);
  fake.Push(
      [this, &fake, op, planned, work = std::move(work)] { Execute(fake, op, planned, work); });
}

void FakeDevice::StopWhileHeld(FakeStream& stream, OpState& state) {
  if (!state.held || stream.closing) return;
  ++state.waiting;
  changed_.NotifyAll();
  while (state.held && state.passes == 0 && !stream.closing) changed_.Wait(&mutex_);
  if (state.held && state.passes > 0) --state.passes;
  --state.waiting;
}

void FakeDevice::Execute(FakeStream& stream, FakeOp op, const absl::Status& planned,
                         const std::function<absl::Status()>& work) {
  double delay;
  absl::Status status = planned;
  {
    MutexLock lock(&mutex_);
    StopWhileHeld(stream, op_state(op));
    delay = std::uniform_real_distribution<double>()(random_);
    status.Update(sticky_);
  }
  if (options_.delay != nullptr && op != FakeOp::kRecord) options_.delay(delay);
  if (op == FakeOp::kRecord || status.ok()) status.Update(work());
  MutexLock lock(&mutex_);
  sticky_.Update(status);
  if (op == FakeOp::kLaunch && status.ok()) ++launches_done_;
  changed_.NotifyAll();
}

// --- Work ---

absl::Status FakeDevice::RunCopy(const Copy2d& copy, bool in) const {
  if (copy.rows == 0 || copy.row_bytes == 0) return absl::OkStatus();
  const size_t device_pitch = in ? copy.destination_pitch : copy.source_pitch;
  TCGEMM_RETURN_IF_ERROR(CheckDeviceMemory(
      in ? copy.destination : copy.source,
      static_cast<size_t>(copy.rows - 1) * device_pitch + copy.row_bytes, "a copy's device side"));
  for (int64_t i = 0; i < copy.rows; ++i) {
    std::memcpy(static_cast<std::byte*>(copy.destination) + i * copy.destination_pitch,
                static_cast<const std::byte*>(copy.source) + i * copy.source_pitch, copy.row_bytes);
  }
  return absl::OkStatus();
}

absl::Status FakeDevice::RunLaunch(const Plan& plan, const std::vector<GemmProblem>& problems) {
  for (const GemmProblem& problem : problems) TCGEMM_RETURN_IF_ERROR(CheckProblem(problem));
  MutexLock lock(&compute_mutex_);
  return cpu_->Launch(*cpu_stream_, plan, problems);
}

absl::StatusOr<std::unique_ptr<Stream>> FakeDevice::CreateStream() {
  TCGEMM_RETURN_IF_ERROR(Begin(FakeOp::kCreateStream));
  MutexLock lock(&mutex_);
  ++live_streams_;
  return std::make_unique<FakeStream>(this);
}

absl::StatusOr<std::unique_ptr<Event>> FakeDevice::CreateEvent() {
  TCGEMM_RETURN_IF_ERROR(Begin(FakeOp::kCreateEvent));
  return std::make_unique<FakeEvent>();
}

absl::Status FakeDevice::CopyIn(Stream& stream, const Copy2d& copy) {
  TCGEMM_RETURN_IF_ERROR(Begin(FakeOp::kCopyIn));
  Enqueue(stream, FakeOp::kCopyIn, [this, copy] { return RunCopy(copy, /*in=*/true); });
  return absl::OkStatus();
}

absl::Status FakeDevice::CopyOut(Stream& stream, const Copy2d& copy) {
  TCGEMM_RETURN_IF_ERROR(Begin(FakeOp::kCopyOut));
  Enqueue(stream, FakeOp::kCopyOut, [this, copy] { return RunCopy(copy, /*in=*/false); });
  return absl::OkStatus();
}

absl::Status FakeDevice::Launch(Stream& stream, const Plan& plan,
                                absl::Span<const GemmProblem> problems) {
  TCGEMM_RETURN_IF_ERROR(Begin(FakeOp::kLaunch));
  std::vector<GemmProblem> copy(problems.begin(), problems.end());
  {
    MutexLock lock(&mutex_);
    batch_sizes_.push_back(static_cast<int>(copy.size()));
    for (const GemmProblem& problem : copy) shapes_.push_back(problem.shape());
  }
  Enqueue(stream, FakeOp::kLaunch,
          [this, plan, problems = std::move(copy)] { return RunLaunch(plan, problems); });
  return absl::OkStatus();
}

absl::Status FakeDevice::Record(Stream& stream, Event& event) {
  TCGEMM_RETURN_IF_ERROR(Begin(FakeOp::kRecord));
  const std::shared_ptr<FakeEvent::State> state = static_cast<FakeEvent&>(event).state;
  int64_t generation;
  {
    MutexLock lock(&state->mutex);
    generation = ++state->recorded;
  }
  Enqueue(stream, FakeOp::kRecord, [this, state, generation] {
    absl::Status status;
    {
      MutexLock lock(&mutex_);
      status = sticky_;
    }
    MutexLock lock(&state->mutex);
    state->reached = generation;
    state->status = status;
    state->time = options_.clock->Now();
    state->reached_cv.NotifyAll();
    return status;
  });
  return absl::OkStatus();
}

absl::Status FakeDevice::WaitFor(Stream& stream, Event& event) {
  const std::shared_ptr<FakeEvent::State> state = static_cast<FakeEvent&>(event).state;
  int64_t generation;
  {
    MutexLock lock(&state->mutex);
    generation = state->recorded;
  }
  static_cast<FakeStream&>(stream).Push([state, generation] {
    MutexLock lock(&state->mutex);
    while (state->reached < generation) state->reached_cv.Wait(&state->mutex);
  });
  return absl::OkStatus();
}

absl::Status FakeDevice::Wait(Event& event, Nanos limit) {
  TCGEMM_RETURN_IF_ERROR(Begin(FakeOp::kWait));
  FakeEvent::State& state = *static_cast<FakeEvent&>(event).state;
  // A year is for ever, and does not overflow.
  const TimePoint end = Clock::Real()->Now() + std::min<Nanos>(limit, std::chrono::hours(8760));
  MutexLock lock(&state.mutex);
  const int64_t generation = state.recorded;
  while (state.reached < generation) {
    if (Clock::Real()->Now() >= end) {
      return absl::DeadlineExceededError("the fake's event is not reached");
    }
    state.reached_cv.WaitUntil(&state.mutex, end);
  }
  return state.status;
}

absl::StatusOr<Nanos> FakeDevice::Elapsed(Event& from, Event& to) {
  TCGEMM_RETURN_IF_ERROR(Begin(FakeOp::kElapsed));
  TimePoint times[2];
  Event* const events[2] = {&from, &to};
  for (int i = 0; i < 2; ++i) {
    FakeEvent::State& state = *static_cast<FakeEvent*>(events[i])->state;
    MutexLock lock(&state.mutex);
    if (state.recorded == 0 || state.reached < state.recorded) {
      return absl::InternalError("Elapsed: an event was not reached");
    }
    times[i] = state.time;
  }
  return std::chrono::duration_cast<Nanos>(times[1] - times[0]);
}

}  // namespace tcgemm
