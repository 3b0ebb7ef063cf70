// Feeds one device: takes batches, copies in, launches, copies out, and ends their jobs.
//
// A slot is what one batch in flight needs: a device slab (none with unified memory), a stream and
// events. Slots go round between two threads: the submit thread fills a free one and asks the
// device for everything at once; the completion thread waits for its last event and ends the jobs.
// Copies and kernels of different slots overlap, as each slot has a stream of its own. On a device
// that computes inside the call (the CPU) the launch runs on the submit thread.
//
// Failures: an operation that fails makes its whole batch end with INTERNAL, after the slot's work
// on the device has stopped. A device that is no longer healthy is reported once; the worker then
// goes on ending what it is given.
#ifndef TCGEMM_SERVER_ENGINE_DEVICE_WORKER_H_
#define TCGEMM_SERVER_ENGINE_DEVICE_WORKER_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "kernels/device.h"
#include "server/engine/engine_events.h"
#include "server/engine/job_queue.h"

namespace tcgemm {

// Bytes that the problem takes of a slab: A, B and D, each row padded to `pitch_alignment` elements
// and each matrix to 256 bytes. SIZE_MAX when that overflows.
size_t SlabBytes(const GemmProblem& problem, int64_t pitch_alignment);

// What is left of a slab of `slab_bytes` for matrices, beside the flags of `max_batch` jobs; 0 when
// not even they fit.
size_t SlabCapacity(size_t slab_bytes, int max_batch);

struct DeviceWorkerOptions {
  int slots = 3;          // ≥ 1
  int max_batch = 64;     // jobs in a batch, at most
  size_t slab_bytes = 0;  // of each slot; not allocated with unified memory
};

class DeviceWorker {
 public:
  // Runs once, on a thread of the worker, with no lock held. Must not destroy the worker.
  using OnUnhealthy = std::function<void(absl::Status)>;

  // Allocates every slot, then starts the threads. The device, queue, clock and events must outlive
  // the worker. Errors are the device's.
  static absl::StatusOr<std::unique_ptr<DeviceWorker>> Create(const DeviceWorkerOptions& options,
                                                              Device* device, JobQueue* queue,
                                                              const Clock* clock,
                                                              EngineEvents* events,
                                                              OnUnhealthy on_unhealthy);
  // The queue must be closed. Ends the batches in flight, then joins.
  ~DeviceWorker();
  DeviceWorker(const DeviceWorker&) = delete;
  DeviceWorker& operator=(const DeviceWorker&) = delete;

 private:
  // Owned by one thread at a time; mutex_ hands it over.
  struct Slot;

  DeviceWorker(Device* device, JobQueue* queue, const Clock* clock, EngineEvents* events,
               OnUnhealthy on_unhealthy);
  absl::StatusOr<std::unique_ptr<Slot>> CreateSlot(const DeviceWorkerOptions& options);

  void SubmitLoop() ABSL_LOCKS_EXCLUDED(mutex_);
  void CompletionLoop() ABSL_LOCKS_EXCLUDED(mutex_);
  Slot* WaitForFreeSlot() ABSL_LOCKS_EXCLUDED(mutex_);
  Slot* WaitForRunningSlot() ABSL_LOCKS_EXCLUDED(mutex_);

  // The submit thread's part.
  void SubmitBatch(Slot& slot);
  void PlaceProblems(Slot& slot);
  absl::Status CopyBatchIn(Slot& slot);
  absl::Status LaunchBatch(Slot& slot);
  absl::Status CopyBatchOut(Slot& slot);
  // The completion thread's part.
  void CompleteBatch(Slot& slot);
  absl::Status MeasureBatch(Slot& slot, JobTimings& timings);
  void TellSuccess(const Slot& slot, const JobTimings& timings);
  // Counts an error that is not OK, and says once when the device is lost.
  absl::Status Note(DeviceErrorKind kind, absl::Status status);

  Device* const device_;
  JobQueue* const queue_;
  const Clock* const clock_;
  EngineEvents* const events_;
  const OnUnhealthy on_unhealthy_;
  std::atomic<bool> told_unhealthy_{false};
  std::vector<std::unique_ptr<Slot>> slots_;

  Mutex mutex_;
  CondVar free_cv_;
  CondVar running_cv_;
  std::vector<Slot*> free_ ABSL_GUARDED_BY(mutex_);
  std::deque<Slot*> running_ ABSL_GUARDED_BY(mutex_);
  bool submitting_ ABSL_GUARDED_BY(mutex_) = true;  // the submit thread may still add to running_

  std::thread submit_thread_;
  std::thread completion_thread_;
};

}  // namespace tcgemm

#endif  // TCGEMM_SERVER_ENGINE_DEVICE_WORKER_H_
