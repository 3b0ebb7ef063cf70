// Feeds one device: takes batches, copies in, launches, copies out, and ends their jobs.
//
// A slot is what one batch in flight needs: a device slab (none with unified memory), a stream and
// events. Slots go round between two threads: the submit thread fills a free one and asks the
// device for everything at once; the completion thread waits for its last event and ends the jobs.
// Copies and kernels of different slots overlap, as each slot has a stream of its own. On a device
// that computes inside the call (the CPU) the launch runs on the submit thread.
//
// Small batches are not copied when the device reads pinned memory (server/engine/in_place.h). The
// D of a large product that is alone leaves in bands while the rest is computed
// (server/engine/row_bands.h).
//
// Who finds the device idle may run one small job without the two threads (RunAtOnce). Only one
// thread at a time asks the device for a batch, whichever it is.
//
// Failures: an operation that fails makes its whole batch end with INTERNAL, after the slot's work
// on the device has stopped. A device that is no longer healthy is reported once; the worker then
// goes on ending what it is given.
//
// Watchdog (server/engine/watchdog.h): a batch that is overdue makes the device count as hung,
// which is reported once. From then on batches in flight that have not ended end with INTERNAL at
// once, and the leases of their jobs stay with the worker: the device may still write there. A
// device that computes inside Launch is not watched: nothing returns to notice.
#ifndef TCGEMM_SERVER_ENGINE_DEVICE_WORKER_H_
#define TCGEMM_SERVER_ENGINE_DEVICE_WORKER_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "kernels/device.h"
#include "server/engine/engine_events.h"
#include "server/engine/fatal.h"
#include "server/engine/job_queue.h"
#include "server/engine/slab.h"

namespace tcgemm {

struct DeviceWorkerOptions {
  int slots = 3;          // ≥ 1
  int max_batch = 64;     // jobs in a batch, at most
  size_t slab_bytes = 0;  // of each slot; not allocated with unified memory
  // A batch of at most this many bytes of operands and results stays in the jobs' pinned memory, if
  // the device reads that: no copies. 0: none does.
  size_t in_place_bytes = 0;
  Nanos watchdog_min{0};  // no batch is overdue before this
};

class DeviceWorker {
 public:
  // Runs once, on a thread of the worker, with no lock held. Must not destroy the worker.
  using OnUnhealthy = std::function<void(const FatalError&)>;

  // Allocates every slot, then starts the threads. The device, queue, clock and events must outlive
  // the worker. Errors are the device's.
  static absl::StatusOr<std::unique_ptr<DeviceWorker>> Create(const DeviceWorkerOptions& options,
                                                              Device* device, JobQueue* queue,
                                                              const Clock* clock,
                                                              EngineEvents* events,
                                                              OnUnhealthy on_unhealthy);
  // If nothing is in flight and a slot is free: takes one job and asks the device for it on this
  // thread; then waits `spin` for its end, and leaves a job that takes longer, or any where that is
  // 0, to the completion thread. So `done` may run before this returns. False when there was no
  // place or no job.
  bool RunAtOnce(Nanos spin, absl::FunctionRef<std::optional<QueuedJob>()> take)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // The queue must be closed. Ends the batches in flight, then joins. Not from a callback.
  void Stop();
  // Stops. A worker whose device has hung must not be destroyed, nor what it uses: releasing memory
  // waits for the device.
  ~DeviceWorker();
  DeviceWorker(const DeviceWorker&) = delete;
  DeviceWorker& operator=(const DeviceWorker&) = delete;

  // A batch is overdue; the device may still write into the leases of its jobs, for ever.
  bool hung() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // Owned by one thread at a time; mutex_ hands it over.
  struct Slot;

  DeviceWorker(const DeviceWorkerOptions& options, Device* device, JobQueue* queue,
               const Clock* clock, EngineEvents* events, OnUnhealthy on_unhealthy);
  absl::StatusOr<std::unique_ptr<Slot>> CreateSlot();

  void SubmitLoop() ABSL_LOCKS_EXCLUDED(mutex_);
  void CompletionLoop() ABSL_LOCKS_EXCLUDED(mutex_);
  // Null once the device has hung.
  Slot* WaitForFreeSlot() ABSL_LOCKS_EXCLUDED(mutex_);
  Slot* WaitForRunningSlot() ABSL_LOCKS_EXCLUDED(mutex_);

  // One thread at a time asks the device for a batch: it has the turn.
  void TakeTurn() ABSL_LOCKS_EXCLUDED(mutex_);
  // The batch runs; gives the turn back.
  void StartRunning(Slot& slot) ABSL_LOCKS_EXCLUDED(mutex_);
  // A slot and the turn, if nothing is in flight; else null.
  Slot* TakeIdleSlot() ABSL_LOCKS_EXCLUDED(mutex_);
  // The end of RunAtOnce: of a job that was submitted, or of none.
  void AwaitDirect(Slot& slot, Nanos spin) ABSL_LOCKS_EXCLUDED(mutex_);
  void GiveTurnBack() ABSL_LOCKS_EXCLUDED(mutex_);
  void Free(Slot& slot) ABSL_LOCKS_EXCLUDED(mutex_);

  // Of who has the turn (device_batch.cc).
  void SubmitBatch(Slot& slot);
  absl::Status RecordEnd(Slot& slot);
  void PlaceProblems(Slot& slot);
  absl::Status SubmitWhole(Slot& slot);
  absl::Status CopyBatchIn(Slot& slot);
  absl::Status StartSlab(Slot& slot);
  struct OperandsToCopy {
    GemmProblem host;
    GemmProblem placed;
    OnDevice on_device;
    bool one_memory = false;
  };
  absl::Status CopyOperandsIn(Slot& slot, const OperandsToCopy& operands);
  absl::Status LaunchBatch(Slot& slot);
  absl::Status Launch(Slot& slot, absl::Span<const GemmProblem> problems);
  absl::Status CopyBatchOut(Slot& slot);
  absl::Status CopyFlagsOut(Slot& slot, Stream& stream);
  absl::Status SubmitBands(Slot& slot);
  void TellTensorMaps();
  // The completion thread's part, and of who has run a job at once.
  void CompleteBatch(Slot& slot);
  void EndBatch(Slot& slot, bool stopped);
  // Ends the slot's work on the device, or its status; false when the device may still be at it.
  bool AwaitBatch(Slot& slot);
  absl::Status WaitUntilOverdue(Slot& slot);
  void NoteHang(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status MeasureBatch(Slot& slot, JobTimings& timings);
  void TellSuccess(const Slot& slot, const JobTimings& timings);
  // Counts an error that is not OK, and says once when the device is lost.
  absl::Status Note(DeviceErrorKind kind, absl::Status status);

  const DeviceWorkerOptions options_;
  Device* const device_;
  JobQueue* const queue_;
  const Clock* const clock_;
  EngineEvents* const events_;
  const OnUnhealthy on_unhealthy_;
  std::atomic<bool> told_unhealthy_{false};
  std::atomic<int64_t> predicted_ns_{0};  // of the batches in flight
  TensorMapCounts told_maps_;             // of who has the turn
  std::vector<std::unique_ptr<Slot>> slots_;

  mutable Mutex mutex_;
  CondVar free_cv_;
  CondVar running_cv_;
  CondVar turn_cv_;
  std::vector<Slot*> free_ ABSL_GUARDED_BY(mutex_);
  std::deque<Slot*> running_ ABSL_GUARDED_BY(mutex_);
  bool submitting_ ABSL_GUARDED_BY(mutex_) = true;  // the submit thread may still add to running_
  bool has_turn_ ABSL_GUARDED_BY(mutex_) = false;   // a thread has it
  int direct_ ABSL_GUARDED_BY(mutex_) = 0;          // jobs in RunAtOnce, which may add to running_
  bool hung_ ABSL_GUARDED_BY(mutex_) = false;

  std::thread submit_thread_;
  std::thread completion_thread_;
};

}  // namespace tcgemm

#endif  // TCGEMM_SERVER_ENGINE_DEVICE_WORKER_H_
