#include "server/engine/device_worker.h"

#include <pthread.h>

#include <chrono>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "server/engine/in_place.h"
#include "server/engine/slab.h"
#include "server/engine/stacking.h"
#include "server/engine/watchdog.h"

namespace tcgemm {
namespace {

double Seconds(Nanos time) { return std::chrono::duration<double>(time).count(); }

}  // namespace

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
  PlacedBatch batch;      // with the device's pointers
  bool in_place = false;  // the pointers are the jobs' own: nothing is copied
  TimePoint taken_at;
  Plan plan;
  double flops = 0;
  size_t bytes_in = 0;
  size_t bytes_out = 0;
  absl::Status status;
  bool recorded = false;  // `finished` marks the end of all that the device was asked for
  Nanos predicted{0};

  // Of a batch that hung: the device may still write there.
  struct Kept {
    Lease memory;
    JobResidents residents;
    JobRegions regions;
  };
  std::vector<Kept> kept;

  uint32_t* flags() const { return reinterpret_cast<uint32_t*>(host_flags.data()); }
};

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
    if (!slot->kept.empty()) continue;  // never used again
    MutexLock lock(&mutex_);
    free_.push_back(slot);
    free_cv_.NotifyOne();
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
  while (running_.empty() && submitting_) running_cv_.Wait(&mutex_);
  if (running_.empty()) return nullptr;
  Slot* const slot = running_.front();
  running_.pop_front();
  return slot;
}

void DeviceWorker::SubmitBatch(Slot& slot) {
  slot.taken_at = clock_->Now();
  slot.flops = 0;
  slot.recorded = false;
  PlaceProblems(slot);
  predicted_ns_.fetch_add(slot.predicted.count());
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
  const DeviceInfo& info = device_->info();
  std::vector<StackCandidate> candidates;
  candidates.reserve(slot.jobs.size());
  double bytes = 0;
  for (const QueuedJob& queued : slot.jobs) {
    candidates.push_back({queued.job.problem, queued.job.residents.on_device(),
                          /*in_region=*/queued.job.regions.any()});
    slot.flops += queued.job.problem.shape().flops();
    // Resident operands too: the kernel reads them.
    bytes += static_cast<double>(SlabBytes(queued.job.problem, info.pitch_alignment));
  }
  const InPlaceRule rule = {.reads_pinned = info.reads_pinned,
                            .pitch_alignment = info.pitch_alignment,
                            .max_bytes = options_.in_place_bytes};
  slot.in_place = info.unified_memory || StaysInPlace(candidates, rule);
  slot.batch =
      slot.in_place
          ? LeaveInPlace(candidates)
          : PlaceBatch(candidates, info.pitch_alignment,
                       slot.slab.data() + SlabFlagBytes(static_cast<int>(slot.jobs.size())));
  uint32_t* const flags =
      slot.in_place ? slot.flags() : reinterpret_cast<uint32_t*>(slot.slab.data());
  for (size_t i = 0; i < slot.batch.problems.size(); ++i) {
    slot.flags()[i] = 0;
    slot.batch.problems[i].nonfinite = flags + i;
  }
  const bool over_bus = slot.in_place && !info.unified_memory;
  const BusBytes bus = over_bus ? InPlaceBytes(candidates) : BusBytes{};
  slot.bytes_in = bus.in;
  slot.bytes_out = bus.out;
  if (slot.jobs[0].job.fastest) {  // and alone
    slot.batch.problems[0].workspace = RestOfSlab(slot.slab, candidates[0], info.pitch_alignment);
  }
  slot.predicted = PredictedTime(
      {.flops = slot.flops, .bytes = bytes, .flops_per_second = info.flops_per_second});
}

absl::Status DeviceWorker::CopyBatchIn(Slot& slot) {
  Stream& stream = *slot.stream;
  if (!slot.in_place) {
    TCGEMM_RETURN_IF_ERROR(Note(DeviceErrorKind::kEvent, device_->Record(stream, *slot.started)));
    const size_t flag_bytes = slot.jobs.size() * sizeof(uint32_t);
    const Copy2d flags = {.destination = slot.slab.data(),
                          .source = slot.flags(),
                          .destination_pitch = flag_bytes,
                          .source_pitch = flag_bytes,
                          .row_bytes = flag_bytes,
                          .rows = 1};
    TCGEMM_RETURN_IF_ERROR(Note(DeviceErrorKind::kCopy, device_->CopyIn(stream, flags)));
    for (size_t i = 0; i < slot.jobs.size(); ++i) {
      const Job& job = slot.jobs[i].job;
      const OperandCopies plan =
          PlanOperandCopies(job.problem, slot.batch.placed[i], job.residents.on_device(),
                            job.regions.operands_in_one_memory(job.problem.epilogue));
      for (int c = 0; c < plan.count; ++c) {
        TCGEMM_RETURN_IF_ERROR(
            Note(DeviceErrorKind::kCopy, device_->CopyIn(stream, plan.copies[c])));
      }
      slot.bytes_in += plan.payload_bytes;
    }
  }
  return Note(DeviceErrorKind::kEvent, device_->Record(stream, *slot.copied_in));
}

absl::Status DeviceWorker::LaunchBatch(Slot& slot) {
  const absl::StatusOr<Plan> plan = ChoosePlan(device_->plan_limits(), slot.batch.problems);
  TCGEMM_RETURN_IF_ERROR(Note(DeviceErrorKind::kLaunch, plan.status()));
  slot.plan = *plan;
  TCGEMM_RETURN_IF_ERROR(Note(DeviceErrorKind::kLaunch,
                              device_->Launch(*slot.stream, slot.plan, slot.batch.problems)));
  TellTensorMaps();
  if (slot.in_place) return absl::OkStatus();  // `finished` follows
  return Note(DeviceErrorKind::kEvent, device_->Record(*slot.stream, *slot.computed));
}

absl::Status DeviceWorker::CopyBatchOut(Slot& slot) {
  if (slot.in_place) return absl::OkStatus();
  for (size_t i = 0; i < slot.jobs.size(); ++i) {
    const Job& job = slot.jobs[i].job;
    if (job.residents.d != nullptr) continue;
    const Copy2d copy = PlanResultCopy(job.problem, slot.batch.placed[i]);
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

void DeviceWorker::TellTensorMaps() {
  const TensorMapCounts now = device_->tensor_map_counts();
  const TensorMapCounts delta = {.hits = now.hits - told_maps_.hits,
                                 .misses = now.misses - told_maps_.misses};
  told_maps_ = now;
  if (delta.hits > 0 || delta.misses > 0) events_->OnTensorMaps(delta);
}

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

void DeviceWorker::CompleteBatch(Slot& slot) {
  const bool stopped = AwaitBatch(slot);
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

absl::Status DeviceWorker::MeasureBatch(Slot& slot, JobTimings& timings) {
  const auto measure = [&](Event& from, Event& to, Nanos& time) {
    const absl::StatusOr<Nanos> elapsed = device_->Elapsed(from, to);
    if (elapsed.ok()) time = *elapsed;
    return Note(DeviceErrorKind::kEvent, elapsed.status());
  };
  // In place nothing was copied, and these two are all that was recorded.
  if (slot.in_place) return measure(*slot.copied_in, *slot.finished, timings.kernel);
  TCGEMM_RETURN_IF_ERROR(measure(*slot.copied_in, *slot.computed, timings.kernel));
  TCGEMM_RETURN_IF_ERROR(measure(*slot.started, *slot.copied_in, timings.copy_in));
  return measure(*slot.computed, *slot.finished, timings.copy_out);
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
