#include "server/engine/device_worker.h"

#include <pthread.h>

#include <chrono>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "server/engine/device_slot.h"
#include "server/engine/watchdog.h"

namespace tcgemm {
namespace {

double Seconds(Nanos time) { return std::chrono::duration<double>(time).count(); }

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceWorker>> DeviceWorker::Create(
    const DeviceWorkerOptions& options, Device* device, JobQueue* queue, const Clock* clock,
    EngineEvents* events, OnUnhealthy on_unhealthy) {
  std::unique_ptr<DeviceWorker> worker(
      new DeviceWorker(options, device, queue, clock, events, std::move(on_unhealthy)));
  for (int i = 0; i < options.slots; ++i) {
    TCGEMM_ASSIGN_OR_RETURN(std::unique_ptr<Slot> slot, worker->CreateSlot());
    worker->slots_.push_back(std::move(slot));
  }
  {
    MutexLock lock(&worker->mutex_);
    for (const auto& slot : worker->slots_) worker->free_.push_back(slot.get());
  }
  worker->submit_thread_ = std::thread(&DeviceWorker::SubmitLoop, worker.get());
  worker->completion_thread_ = std::thread(&DeviceWorker::CompletionLoop, worker.get());
  return worker;
}

DeviceWorker::DeviceWorker(const DeviceWorkerOptions& options, Device* device, JobQueue* queue,
                           const Clock* clock, EngineEvents* events, OnUnhealthy on_unhealthy)
    : options_(options),
      device_(device),
      queue_(queue),
      clock_(clock),
      events_(events),
      on_unhealthy_(std::move(on_unhealthy)) {}

DeviceWorker::~DeviceWorker() { Stop(); }

void DeviceWorker::Stop() {
  if (submit_thread_.joinable()) submit_thread_.join();
  if (completion_thread_.joinable()) completion_thread_.join();
}

bool DeviceWorker::hung() const {
  MutexLock lock(&mutex_);
  return hung_;
}

absl::StatusOr<std::unique_ptr<DeviceWorker::Slot>> DeviceWorker::CreateSlot() {
  auto slot = std::make_unique<Slot>();
  // A few KiB a slot, beside the budgets.
  TCGEMM_ASSIGN_OR_RETURN(slot->host_flags,
                          device_->AllocatePinned(SlabFlagBytes(options_.max_batch)));
  if (!device_->info().unified_memory) {
    absl::StatusOr<MemoryBlock> slab = device_->AllocateDevice(options_.slab_bytes);
    if (!slab.ok()) {
      return absl::Status(slab.status().code(),
                          absl::StrCat("--device-bytes asks for ", options_.slots, " times ",
                                       options_.slab_bytes, " bytes: ", slab.status().message()));
    }
    slot->slab = *std::move(slab);
  }
  TCGEMM_ASSIGN_OR_RETURN(slot->stream, device_->CreateStream());
  for (auto* event : {&slot->started, &slot->copied_in, &slot->computed, &slot->finished}) {
    TCGEMM_ASSIGN_OR_RETURN(*event, device_->CreateEvent());
  }
  if (!device_->info().unified_memory) {
    TCGEMM_ASSIGN_OR_RETURN(slot->out_stream, device_->CreateStream());
    for (Slot::BandEvents& events : slot->band_events) {
      TCGEMM_ASSIGN_OR_RETURN(events.launched, device_->CreateEvent());
      TCGEMM_ASSIGN_OR_RETURN(events.computed, device_->CreateEvent());
    }
  }
  slot->jobs.reserve(options_.max_batch);
  return slot;
}

void DeviceWorker::SubmitLoop() {
  pthread_setname_np(pthread_self(), "engine-submit");
  while (true) {
    // The slot first: a batch that waits for one could still have grown.
    Slot* const slot = WaitForFreeSlot();
    if (slot == nullptr) break;
    slot->jobs = queue_->WaitForBatch();
    if (slot->jobs.empty()) break;
    TakeTurn();
    SubmitBatch(*slot);
    StartRunning(*slot);
  }
  MutexLock lock(&mutex_);
  submitting_ = false;
  running_cv_.NotifyOne();
}

void DeviceWorker::CompletionLoop() {
  pthread_setname_np(pthread_self(), "engine-done");
  while (Slot* const slot = WaitForRunningSlot()) {
    CompleteBatch(*slot);
    Free(*slot);
  }
}

DeviceWorker::Slot* DeviceWorker::WaitForFreeSlot() {
  MutexLock lock(&mutex_);
  while (free_.empty() && !hung_) free_cv_.Wait(&mutex_);
  if (hung_) return nullptr;
  Slot* const slot = free_.back();
  free_.pop_back();
  return slot;
}

DeviceWorker::Slot* DeviceWorker::WaitForRunningSlot() {
  MutexLock lock(&mutex_);
  while (running_.empty() && (submitting_ || direct_ > 0)) running_cv_.Wait(&mutex_);
  if (running_.empty()) return nullptr;
  Slot* const slot = running_.front();
  running_.pop_front();
  return slot;
}

void DeviceWorker::TakeTurn() {
  MutexLock lock(&mutex_);
  while (has_turn_) turn_cv_.Wait(&mutex_);
  has_turn_ = true;
}

void DeviceWorker::GiveTurnBack() {
  MutexLock lock(&mutex_);
  has_turn_ = false;
  turn_cv_.NotifyOne();
}

void DeviceWorker::StartRunning(Slot& slot) {
  MutexLock lock(&mutex_);
  has_turn_ = false;
  turn_cv_.NotifyOne();
  running_.push_back(&slot);
  running_cv_.NotifyOne();
}

void DeviceWorker::Free(Slot& slot) {
  if (!slot.kept.empty()) return;  // never used again
  MutexLock lock(&mutex_);
  free_.push_back(&slot);
  free_cv_.NotifyOne();
}

// ---- Without the threads ----

DeviceWorker::Slot* DeviceWorker::TakeIdleSlot() {
  MutexLock lock(&mutex_);
  // One slot may be the submit thread's, which waits for a batch with it.
  const bool idle = !has_turn_ && free_.size() + 1 >= slots_.size();
  if (hung_ || !idle || free_.empty()) return nullptr;
  Slot* const slot = free_.back();
  free_.pop_back();
  has_turn_ = true;
  ++direct_;
  return slot;
}

bool DeviceWorker::RunAtOnce(Nanos spin, absl::FunctionRef<std::optional<QueuedJob>()> take) {
  Slot* const slot = TakeIdleSlot();
  if (slot == nullptr) return false;
  std::optional<QueuedJob> job = take();
  const bool taken = job.has_value();
  if (taken) {
    slot->jobs.push_back(*std::move(job));
    SubmitBatch(*slot);
  }
  GiveTurnBack();
  if (taken) {
    AwaitDirect(*slot, spin);
  } else {
    Free(*slot);
  }
  MutexLock lock(&mutex_);
  --direct_;
  running_cv_.NotifyOne();
  return taken;
}

void DeviceWorker::AwaitDirect(Slot& slot, Nanos spin) {
  if (slot.recorded) {
    absl::Status waited = absl::DeadlineExceededError("");
    if (spin > Nanos(0)) waited = device_->Wait(*slot.finished, spin);
    if (absl::IsDeadlineExceeded(waited)) {
      MutexLock lock(&mutex_);
      running_.push_back(&slot);
      return;  // RunAtOnce wakes the completion thread
    }
    if (slot.status.ok()) slot.status = Note(DeviceErrorKind::kEvent, waited);
  }
  EndBatch(slot, /*stopped=*/slot.recorded || !hung());
  Free(slot);
}

// ---- Completion ----

bool DeviceWorker::AwaitBatch(Slot& slot) {
  // Without the event nobody can tell any more when a hung device is done with the memory.
  if (!slot.recorded) return !hung();
  const absl::Status waited = WaitUntilOverdue(slot);
  if (absl::IsDeadlineExceeded(waited)) {
    slot.status = waited;
    NoteHang(slot.status);
    return false;
  }
  if (slot.status.ok()) slot.status = Note(DeviceErrorKind::kEvent, waited);
  return true;
}

absl::Status DeviceWorker::WaitUntilOverdue(Slot& slot) {
  // What is behind a hung kernel does not end: only look whether this batch did.
  if (hung()) return device_->Wait(*slot.finished, Nanos(0));
  Nanos waited{0};
  while (true) {
    const Nanos predicted(predicted_ns_.load());
    const Nanos limit = WatchdogLimit({.minimum = options_.watchdog_min, .predicted = predicted});
    // It grows when more batches were launched meanwhile; their number is that of the slots.
    if (limit <= waited) {
      return absl::DeadlineExceededError(absl::StrCat(
          "watchdog: a batch of ", slot.jobs.size(), " (first ",
          slot.jobs[0].job.problem.shape().ToString(), ") did not end within ", Seconds(limit),
          " s; all in flight were predicted to take ", Seconds(predicted), " s"));
    }
    absl::Status status = device_->Wait(*slot.finished, limit - waited);
    if (!absl::IsDeadlineExceeded(status)) return status;
    waited = limit;
  }
}

void DeviceWorker::NoteHang(const absl::Status& status) {
  {
    MutexLock lock(&mutex_);
    if (hung_) return;
    hung_ = true;
    free_cv_.NotifyOne();
  }
  events_->OnDeviceError(DeviceErrorKind::kWatchdog);
  if (!told_unhealthy_.exchange(true)) on_unhealthy_({FatalCause::kWatchdog, status});
}

void DeviceWorker::CompleteBatch(Slot& slot) { EndBatch(slot, AwaitBatch(slot)); }

void DeviceWorker::EndBatch(Slot& slot, bool stopped) {
  JobTimings timings;
  if (slot.status.ok()) slot.status = MeasureBatch(slot, timings);
  if (slot.status.ok()) TellSuccess(slot, timings);
  const double seconds = Seconds(timings.kernel);
  for (QueuedJob& queued : slot.jobs) {
    JobOutcome outcome;
    if (slot.status.ok()) {
      outcome.timings = timings;
      outcome.timings.queue = slot.taken_at - queued.queued_at;
      outcome.kernel = std::string(KernelName(slot.plan.kernel));
      outcome.tflops = seconds > 0 ? slot.flops / seconds * 1e-12 : 0;
      outcome.batched_with = static_cast<int>(slot.jobs.size()) - 1;
    } else {
      outcome.status = absl::InternalError(
          absl::StrCat("device ", device_->info().name, " failed: ", slot.status.message()));
    }
    Job& job = queued.job;
    if (!stopped) slot.kept.push_back({std::move(job.memory), job.residents, job.regions});
    queue_->Finish(std::move(queued), std::move(outcome));
  }
  slot.jobs.clear();
  predicted_ns_.fetch_sub(slot.predicted.count());
}

void DeviceWorker::TellSuccess(const Slot& slot, const JobTimings& timings) {
  events_->OnLaunch({.kernel = slot.plan.kernel,
                     .batch_size = static_cast<int>(slot.jobs.size()),
                     .coalesced = CountStacked(slot.batch),
                     .flops = slot.flops,
                     .kernel_time = timings.kernel});
  // Bytes of operands and results that really moved between host and device: with unified memory
  // none do, and the counters stay at 0.
  if (slot.bytes_in > 0) events_->OnCopyIn(slot.bytes_in);
  if (slot.bytes_out > 0) events_->OnCopyOut(slot.bytes_out);
  for (size_t i = 0; i < slot.batch.problems.size(); ++i) {
    if (slot.flags()[i] == 0) continue;
    const std::vector<size_t>& members = slot.batch.stacks[i];
    for (const size_t member : members) {
      const GemmProblem& problem = slot.jobs[member].job.problem;
      // The flag is the whole stack's; whose it is, its results tell, which lie in host memory.
      if (members.size() > 1 && !HasNonfinite(AsConst(problem.d))) continue;
      events_->OnNonfiniteOutput();
      if (problem.nonfinite != nullptr) *problem.nonfinite = 1;
    }
  }
}

absl::Status DeviceWorker::Note(DeviceErrorKind kind, absl::Status status) {
  if (status.ok()) return status;
  events_->OnDeviceError(kind);
  if (!device_->healthy() && !told_unhealthy_.exchange(true)) {
    on_unhealthy_({FatalCause::kDeviceLost, status});
  }
  return status;
}

}  // namespace tcgemm
