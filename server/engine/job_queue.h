// The jobs that wait: the batcher's policy behind one lock, with its limits and its ends.
//
// A job that Push accepted leaves in one of four ways, and its `done` is called once in each: taken
// by WaitForBatch or TakeAtOnce (its taker calls Finish), cancelled, expired, or failed by Close.
#ifndef TCGEMM_SERVER_ENGINE_JOB_QUEUE_H_
#define TCGEMM_SERVER_ENGINE_JOB_QUEUE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "server/engine/batcher.h"
#include "server/engine/engine_events.h"
#include "server/engine/job.h"

namespace tcgemm {

// A job that would exceed `flops` or `bytes` is accepted when nothing else waits: else a product
// above the limit could never run.
struct QueueLimits {
  int64_t jobs = 0;
  size_t bytes = 0;
  double flops = 0;
};

struct QueuedJob {
  JobId id = 0;
  Job job;
  TimePoint queued_at;
};

// Thread-safe. Callbacks run with no lock held, on the thread that caused them.
class JobQueue {
 public:
  JobQueue(const BatcherOptions& batching, const QueueLimits& limits, const Clock* clock,
           EngineEvents* events);
  // Every job must have left: Close first.
  ~JobQueue();
  JobQueue(const JobQueue&) = delete;
  JobQueue& operator=(const JobQueue&) = delete;

  // What Push would answer to a small job now: OK, UNAVAILABLE or RESOURCE_EXHAUSTED.
  absl::Status Admit() const ABSL_LOCKS_EXCLUDED(mutex_);
  // `bytes`: what the job takes of a slab. UNAVAILABLE after Drain or Close; RESOURCE_EXHAUSTED at
  // a limit, unless the job is admitted; DEADLINE_EXCEEDED when the deadline has passed. On an
  // error the job is gone.
  absl::StatusOr<JobId> Push(Job job, size_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);
  // For a caller that runs the job itself and then calls Finish: the job with its id, if Push would
  // take it and WaitForBatch would return it alone at once: nothing waits, and no window is to be
  // waited for. Else none, and `job` is as it was.
  std::optional<QueuedJob> TakeAtOnce(Job& job) ABSL_LOCKS_EXCLUDED(mutex_);
  bool Cancel(JobId id, absl::Status why) ABSL_LOCKS_EXCLUDED(mutex_);

  // As Batcher::SetLimits.
  void SetBatching(int max_batch, Nanos max_delay) ABSL_LOCKS_EXCLUDED(mutex_);
  BatcherOptions batching() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Refuses new jobs; those that wait are taken without waiting for company.
  void Drain() ABSL_LOCKS_EXCLUDED(mutex_);
  // Refuses new jobs with `why` and fails those that wait with it. The first call counts.
  void Close(absl::Status why) ABSL_LOCKS_EXCLUDED(mutex_);

  // Blocks until a batch is ready; empty once closed. For one thread.
  std::vector<QueuedJob> WaitForBatch() ABSL_LOCKS_EXCLUDED(mutex_);
  // Ends jobs as their deadlines pass; returns once closed. For a thread of its own, because the
  // others block in the device, and a deadline must hold behind a slow job too.
  void ExpireUntilClosed() ABSL_LOCKS_EXCLUDED(mutex_);
  // Ends a job that WaitForBatch returned.
  void Finish(QueuedJob job, JobOutcome outcome);

  // Accepted, and `done` has not returned yet.
  int64_t pending_jobs() const { return pending_jobs_.load(); }

 private:
  absl::Status CheckOpen() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckRoom(double flops, size_t bytes) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::vector<QueuedJob> Extract(const std::vector<JobId>& ids)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TellChanged() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void WaitUntil(CondVar& cv, TimePoint when) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void FinishExpired(std::vector<QueuedJob> jobs);

  const QueueLimits limits_;
  const Clock* const clock_;
  EngineEvents* const events_;
  std::atomic<int64_t> pending_jobs_{0};
  mutable Mutex mutex_;
  CondVar batch_cv_;   // something that WaitForBatch waits for may have changed
  CondVar expire_cv_;  // the earliest deadline came nearer, or the queue closed
  Batcher batcher_ ABSL_GUARDED_BY(mutex_);
  std::unordered_map<JobId, QueuedJob> jobs_ ABSL_GUARDED_BY(mutex_);
  JobId next_id_ ABSL_GUARDED_BY(mutex_) = 1;
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status closed_ ABSL_GUARDED_BY(mutex_);  // not OK: closed, and why
};

}  // namespace tcgemm

#endif  // TCGEMM_SERVER_ENGINE_JOB_QUEUE_H_
