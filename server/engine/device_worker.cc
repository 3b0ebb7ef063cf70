#include "server/engine/device_worker.h"

#include <pthread.h>

#include <chrono>
#include <limits>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tcgemm {
namespace {

// Every matrix in a slab starts on this: more than the 128 bytes that TMA's swizzled boxes want.
constexpr size_t kSlabAlignment = 256;

size_t RoundUp(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }

size_t FlagBytes(int max_batch) {
  return RoundUp(static_cast<size_t>(max_batch) * sizeof(uint32_t), kSlabAlignment);
}

template <typename View>
int64_t SlabPitch(const View& view, int64_t pitch_alignment) {
  return (view.cols + pitch_alignment - 1) / pitch_alignment * pitch_alignment;
}

template <typename View>
size_t SlabMatrixBytes(const View& view, int64_t pitch_alignment) {
  const size_t pitch = static_cast<size_t>(SlabPitch(view, pitch_alignment));
  return RoundUp(static_cast<size_t>(view.rows) * pitch * DTypeSize(view.dtype), kSlabAlignment);
}

// The copy of a matrix between two views of the same shape.
template <typename To, typename From>
Copy2d CopyBetween(const To& to, const From& from) {
  const size_t size = DTypeSize(from.dtype);
  return {.destination = to.data,
          .source = from.data,
          .destination_pitch = static_cast<size_t>(to.ld) * size,
          .source_pitch = static_cast<size_t>(from.ld) * size,
          .row_bytes = static_cast<size_t>(from.cols) * size,
          .rows = from.rows};
}

size_t CopyBytes(const Copy2d& copy) { return copy.row_bytes * static_cast<size_t>(copy.rows); }

double Seconds(Nanos time) { return std::chrono::duration<double>(time).count(); }

}  // namespace

size_t SlabBytes(const GemmProblem& problem, int64_t pitch_alignment) {
  double estimate = 0;
  for (const MatrixView& view : {problem.a, problem.b, AsConst(problem.d)}) {
    const double pitch = static_cast<double>(view.cols) + static_cast<double>(pitch_alignment);
    estimate += static_cast<double>(view.rows) * pitch * 4 + kSlabAlignment;
  }
  if (estimate > 0x1p62) return std::numeric_limits<size_t>::max();
  return SlabMatrixBytes(problem.a, pitch_alignment) + SlabMatrixBytes(problem.b, pitch_alignment) +
         SlabMatrixBytes(problem.d, pitch_alignment);
}

size_t SlabCapacity(size_t slab_bytes, int max_batch) {
  const size_t flags = FlagBytes(max_batch);
  return slab_bytes > flags ? slab_bytes - flags : 0;
}

struct DeviceWorker::Slot {
  // The order matters: events and streams go before memory.
  MemoryBlock slab;        // flags, then matrices; empty with unified memory
  MemoryBlock host_flags;  // one per job: its result holds a NaN or an Inf
  std::unique_ptr<Stream> stream;
  std::unique_ptr<Event> started;
  std::unique_ptr<Event> copied_in;
  std::unique_ptr<Event> computed;
  std::unique_ptr<Event> finished;

  // One batch.
  std::vector<QueuedJob> jobs;
  std::vector<GemmProblem> problems;  // with the device's pointers
  TimePoint taken_at;
  Plan plan;
  double flops = 0;
  size_t bytes_in = 0;
  size_t bytes_out = 0;
  absl::Status status;
  bool recorded = false;  // `finished` marks the end of all that the device was asked for

  uint32_t* flags() const { return reinterpret_cast<uint32_t*>(host_flags.data()); }
};

absl::StatusOr<std::unique_ptr<DeviceWorker>> DeviceWorker::Create(
    const DeviceWorkerOptions& options, Device* device, JobQueue* queue, const Clock* clock,
    EngineEvents* events, OnUnhealthy on_unhealthy) {
  std::unique_ptr<DeviceWorker> worker(
      new DeviceWorker(device, queue, clock, events, std::move(on_unhealthy)));
  for (int i = 0; i < options.slots; ++i) {
    TCGEMM_ASSIGN_OR_RETURN(std::unique_ptr<Slot> slot, worker->CreateSlot(options));
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

DeviceWorker::DeviceWorker(Device* device, JobQueue* queue, const Clock* clock,
                           EngineEvents* events, OnUnhealthy on_unhealthy)
    : device_(device),
      queue_(queue),
      clock_(clock),
      events_(events),
      on_unhealthy_(std::move(on_unhealthy)) {}

DeviceWorker::~DeviceWorker() {
  if (submit_thread_.joinable()) submit_thread_.join();
  if (completion_thread_.joinable()) completion_thread_.join();
}

absl::StatusOr<std::unique_ptr<DeviceWorker::Slot>> DeviceWorker::CreateSlot(
    const DeviceWorkerOptions& options) {
  auto slot = std::make_unique<Slot>();
  // A few KiB a slot, beside the budgets.
  TCGEMM_ASSIGN_OR_RETURN(slot->host_flags, device_->AllocatePinned(FlagBytes(options.max_batch)));
  if (!device_->info().unified_memory) {
    TCGEMM_ASSIGN_OR_RETURN(slot->slab, device_->AllocateDevice(options.slab_bytes));
  }
  TCGEMM_ASSIGN_OR_RETURN(slot->stream, device_->CreateStream());
  for (auto* event : {&slot->started, &slot->copied_in, &slot->computed, &slot->finished}) {
    TCGEMM_ASSIGN_OR_RETURN(*event, device_->CreateEvent());
  }
  slot->jobs.reserve(options.max_batch);
  slot->problems.reserve(options.max_batch);
  return slot;
}

void DeviceWorker::SubmitLoop() {
  pthread_setname_np(pthread_self(), "engine-submit");
  while (true) {
    // The slot first: a batch that waits for one could still have grown.
    Slot* const slot = WaitForFreeSlot();
    slot->jobs = queue_->WaitForBatch();
    if (slot->jobs.empty()) break;
    SubmitBatch(*slot);
    MutexLock lock(&mutex_);
    running_.push_back(slot);
    running_cv_.NotifyOne();
  }
  MutexLock lock(&mutex_);
  submitting_ = false;
  running_cv_.NotifyOne();
}

void DeviceWorker::CompletionLoop() {
  pthread_setname_np(pthread_self(), "engine-done");
  while (Slot* const slot = WaitForRunningSlot()) {
    CompleteBatch(*slot);
    MutexLock lock(&mutex_);
    free_.push_back(slot);
    free_cv_.NotifyOne();
  }
}

DeviceWorker::Slot* DeviceWorker::WaitForFreeSlot() {
  MutexLock lock(&mutex_);
  while (free_.empty()) free_cv_.Wait(&mutex_);
  Slot* const slot = free_.back();
  free_.pop_back();
  return slot;
}

DeviceWorker::Slot* DeviceWorker::WaitForRunningSlot() {
  MutexLock lock(&mutex_);
  while (running_.empty() && submitting_) running_cv_.Wait(&mutex_);
  if (running_.empty()) return nullptr;
  Slot* const slot = running_.front();
  running_.pop_front();
  return slot;
}

void DeviceWorker::SubmitBatch(Slot& slot) {
  slot.taken_at = clock_->Now();
  slot.flops = 0;
  slot.bytes_in = 0;
  slot.bytes_out = 0;
  slot.recorded = false;
  PlaceProblems(slot);
  slot.status = CopyBatchIn(slot);
  if (slot.status.ok()) slot.status = LaunchBatch(slot);
  if (slot.status.ok()) slot.status = CopyBatchOut(slot);
  // Recorded after a failure too: copies that were asked for before it may still be under way, and
  // the jobs' memory must not go back to the pool under them.
  const absl::Status recorded = device_->Record(*slot.stream, *slot.finished);
  slot.recorded = recorded.ok();
  if (slot.status.ok()) slot.status = Note(DeviceErrorKind::kEvent, recorded);
}

void DeviceWorker::PlaceProblems(Slot& slot) {
  const bool unified = device_->info().unified_memory;
  const int64_t pitch_alignment = device_->info().pitch_alignment;
  std::byte* const slab = slot.slab.data();
  size_t offset = FlagBytes(static_cast<int>(slot.jobs.size()));
  const auto place = [&](auto& view) {
    const size_t bytes = SlabMatrixBytes(view, pitch_alignment);
    view.data = slab + offset;
    view.ld = SlabPitch(view, pitch_alignment);
    offset += bytes;
  };
  slot.problems.clear();
  for (size_t i = 0; i < slot.jobs.size(); ++i) {
    GemmProblem problem = slot.jobs[i].job.problem;
    slot.flops += problem.shape().flops();
    slot.flags()[i] = 0;
    problem.nonfinite = slot.flags() + i;
    if (!unified) {
      problem.nonfinite = reinterpret_cast<uint32_t*>(slab) + i;
      place(problem.a);
      place(problem.b);
      place(problem.d);
    }
    slot.problems.push_back(problem);
  }
}

absl::Status DeviceWorker::CopyBatchIn(Slot& slot) {
  Stream& stream = *slot.stream;
  TCGEMM_RETURN_IF_ERROR(Note(DeviceErrorKind::kEvent, device_->Record(stream, *slot.started)));
  if (!device_->info().unified_memory) {
    const size_t flag_bytes = slot.jobs.size() * sizeof(uint32_t);
    const Copy2d flags = {.destination = slot.slab.data(),
                          .source = slot.flags(),
                          .destination_pitch = flag_bytes,
                          .source_pitch = flag_bytes,
                          .row_bytes = flag_bytes,
                          .rows = 1};
    TCGEMM_RETURN_IF_ERROR(Note(DeviceErrorKind::kCopy, device_->CopyIn(stream, flags)));
    for (size_t i = 0; i < slot.jobs.size(); ++i) {
      const GemmProblem& host = slot.jobs[i].job.problem;
      const GemmProblem& placed = slot.problems[i];
      // The engine placed these operands itself, in memory that it may write.
      const auto target = [](const MatrixView& view) {
        return MutableMatrixView{const_cast<void*>(view.data),
                                 view.rows,
                                 view.cols,
                                 view.ld,
                                 view.dtype,
                                 view.transposed};
      };
      for (const Copy2d& copy :
           {CopyBetween(target(placed.a), host.a), CopyBetween(target(placed.b), host.b)}) {
        if (CopyBytes(copy) == 0) continue;  // K = 0
        TCGEMM_RETURN_IF_ERROR(Note(DeviceErrorKind::kCopy, device_->CopyIn(stream, copy)));
        slot.bytes_in += CopyBytes(copy);
      }
    }
  }
  return Note(DeviceErrorKind::kEvent, device_->Record(stream, *slot.copied_in));
}

absl::Status DeviceWorker::LaunchBatch(Slot& slot) {
  const absl::StatusOr<Plan> plan = ChoosePlan(device_->plan_limits(), slot.problems);
  TCGEMM_RETURN_IF_ERROR(Note(DeviceErrorKind::kLaunch, plan.status()));
  slot.plan = *plan;
  TCGEMM_RETURN_IF_ERROR(
      Note(DeviceErrorKind::kLaunch, device_->Launch(*slot.stream, slot.plan, slot.problems)));
  return Note(DeviceErrorKind::kEvent, device_->Record(*slot.stream, *slot.computed));
}

absl::Status DeviceWorker::CopyBatchOut(Slot& slot) {
  if (device_->info().unified_memory) return absl::OkStatus();
  for (size_t i = 0; i < slot.jobs.size(); ++i) {
    const Copy2d copy = CopyBetween(slot.jobs[i].job.problem.d, slot.problems[i].d);
    if (CopyBytes(copy) == 0) continue;
    TCGEMM_RETURN_IF_ERROR(Note(DeviceErrorKind::kCopy, device_->CopyOut(*slot.stream, copy)));
    slot.bytes_out += CopyBytes(copy);
  }
  const size_t flag_bytes = slot.jobs.size() * sizeof(uint32_t);
  return Note(DeviceErrorKind::kCopy,
              device_->CopyOut(*slot.stream, {.destination = slot.flags(),
                                              .source = slot.slab.data(),
                                              .destination_pitch = flag_bytes,
                                              .source_pitch = flag_bytes,
                                              .row_bytes = flag_bytes,
                                              .rows = 1}));
}

void DeviceWorker::CompleteBatch(Slot& slot) {
  if (slot.recorded) {
    const absl::Status waited = device_->Wait(*slot.finished);
    if (slot.status.ok()) slot.status = Note(DeviceErrorKind::kEvent, waited);
  }
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
    queue_->Finish(std::move(queued), std::move(outcome));
  }
  slot.jobs.clear();
}

absl::Status DeviceWorker::MeasureBatch(Slot& slot, JobTimings& timings) {
  const auto measure = [&](Event& from, Event& to, Nanos& time) {
    const absl::StatusOr<Nanos> elapsed = device_->Elapsed(from, to);
    if (elapsed.ok()) time = *elapsed;
    return Note(DeviceErrorKind::kEvent, elapsed.status());
  };
  TCGEMM_RETURN_IF_ERROR(measure(*slot.copied_in, *slot.computed, timings.kernel));
  if (device_->info().unified_memory) return absl::OkStatus();  // nothing was copied
  TCGEMM_RETURN_IF_ERROR(measure(*slot.started, *slot.copied_in, timings.copy_in));
  return measure(*slot.computed, *slot.finished, timings.copy_out);
}

void DeviceWorker::TellSuccess(const Slot& slot, const JobTimings& timings) {
  events_->OnLaunch({.kernel = slot.plan.kernel,
                     .batch_size = static_cast<int>(slot.jobs.size()),
                     .flops = slot.flops,
                     .kernel_time = timings.kernel});
  // Bytes of operands and results that really moved between host and device: with unified memory
  // none do, and the counters stay at 0.
  if (slot.bytes_in > 0) events_->OnCopyIn(slot.bytes_in);
  if (slot.bytes_out > 0) events_->OnCopyOut(slot.bytes_out);
  for (size_t i = 0; i < slot.jobs.size(); ++i) {
    if (slot.flags()[i] == 0) continue;
    events_->OnNonfiniteOutput();
    uint32_t* const asked = slot.jobs[i].job.problem.nonfinite;
    if (asked != nullptr) *asked = 1;
  }
}

absl::Status DeviceWorker::Note(DeviceErrorKind kind, absl::Status status) {
  if (status.ok()) return status;
  events_->OnDeviceError(kind);
  if (!device_->healthy() && !told_unhealthy_.exchange(true)) on_unhealthy_(status);
  return status;
}

}  // namespace tcgemm
