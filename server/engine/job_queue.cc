#include "server/engine/job_queue.h"

#include <algorithm>
#include <cassert>
#include <chrono>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tcgemm {

JobQueue::JobQueue(const BatcherOptions& batching, const QueueLimits& limits, const Clock* clock,
                   EngineEvents* events)
    : limits_(limits), clock_(clock), events_(events), batcher_(batching) {}

JobQueue::~JobQueue() { assert(pending_jobs() == 0); }

absl::Status JobQueue::Admit() const {
  MutexLock lock(&mutex_);
  TCGEMM_RETURN_IF_ERROR(CheckOpen());
  // A limit that is reached refuses here, before any payload; the job's own size is not known yet.
  return CheckRoom(0, 0);
}

absl::StatusOr<JobId> JobQueue::Push(Job job, size_t bytes) {
  const double flops = job.problem.shape().flops();
  const TimePoint now = clock_->Now();
  QueuedJob queued{.job = std::move(job), .queued_at = now};
  const TimePoint deadline = queued.job.deadline;
  MutexLock lock(&mutex_);
  TCGEMM_RETURN_IF_ERROR(CheckOpen());
  if (deadline <= now) {
    return absl::DeadlineExceededError("the deadline passed before the product was queued");
  }
  if (!queued.job.admitted) TCGEMM_RETURN_IF_ERROR(CheckRoom(flops, bytes));
  const JobId id = next_id_++;
  queued.id = id;
  const bool nearer = deadline < batcher_.next_deadline();
  batcher_.Enqueue({.id = id,
                    .key = queued.job.problem.d.dtype,
                    .flops = flops,
                    .bytes = bytes,
                    .alone = queued.job.fastest,
                    .deadline = deadline},
                   now);
  jobs_.emplace(id, std::move(queued));
  pending_jobs_.fetch_add(1);
  TellChanged();
  batch_cv_.NotifyOne();
  if (nearer) expire_cv_.NotifyOne();
  return id;
}

std::optional<QueuedJob> JobQueue::TakeAtOnce(Job& job) {
  const TimePoint now = clock_->Now();
  MutexLock lock(&mutex_);
  if (!CheckOpen().ok() || job.deadline <= now || batcher_.jobs() > 0 ||
      batcher_.options().max_delay > Nanos(0)) {
    return std::nullopt;
  }
  pending_jobs_.fetch_add(1);
  return QueuedJob{.id = next_id_++, .job = std::move(job), .queued_at = now};
}

bool JobQueue::Cancel(JobId id, absl::Status why) {
  std::vector<QueuedJob> cancelled;
  {
    MutexLock lock(&mutex_);
    if (!batcher_.Remove(id)) return false;
    cancelled = Extract({id});
  }
  events_->OnCancelled(Stage::kQueue);
  Finish(std::move(cancelled.front()), {.status = std::move(why)});
  return true;
}

void JobQueue::SetBatching(int max_batch, Nanos max_delay) {
  MutexLock lock(&mutex_);
  batcher_.SetLimits(max_batch, max_delay);
  batch_cv_.NotifyAll();
}

BatcherOptions JobQueue::batching() const {
  MutexLock lock(&mutex_);
  return batcher_.options();
}

void JobQueue::Drain() {
  MutexLock lock(&mutex_);
  draining_ = true;
  batcher_.Drain();
  batch_cv_.NotifyOne();
}

void JobQueue::Close(absl::Status why) {
  std::vector<QueuedJob> failed;
  {
    MutexLock lock(&mutex_);
    if (!closed_.ok()) return;
    closed_ = why;
    std::vector<JobId> ids;
    for (const auto& [id, queued] : jobs_) ids.push_back(id);
    std::sort(ids.begin(), ids.end());
    for (const JobId id : ids) batcher_.Remove(id);
    failed = Extract(ids);
    batch_cv_.NotifyAll();
    expire_cv_.NotifyAll();
  }
  for (QueuedJob& queued : failed) Finish(std::move(queued), {.status = why});
}

std::vector<QueuedJob> JobQueue::WaitForBatch() {
  while (true) {
    std::vector<QueuedJob> batch;
    std::vector<QueuedJob> expired;
    {
      MutexLock lock(&mutex_);
      while (batch.empty() && expired.empty()) {
        if (!closed_.ok()) return {};
        const BatchTake take = batcher_.Take(clock_->Now());
        batch = Extract(take.batch);
        expired = Extract(take.expired);
        if (batch.empty() && expired.empty()) WaitUntil(batch_cv_, take.wake);
      }
    }
    FinishExpired(std::move(expired));
    if (!batch.empty()) return batch;
  }
}

void JobQueue::ExpireUntilClosed() {
  while (true) {
    std::vector<QueuedJob> expired;
    {
      MutexLock lock(&mutex_);
      while (expired.empty()) {
        if (!closed_.ok()) return;
        expired = Extract(batcher_.TakeExpired(clock_->Now()));
        if (expired.empty()) WaitUntil(expire_cv_, batcher_.next_deadline());
      }
    }
    FinishExpired(std::move(expired));
  }
}

void JobQueue::Finish(QueuedJob job, JobOutcome outcome) {
  // A caller gets its memory back, so that it may answer from it or reuse it; unless the device has
  // hung with it.
  outcome.memory = std::move(job.job.memory);
  // The device is done with them, or the worker keeps them.
  job.job.residents = {};
  job.job.regions = {};
  job.job.done(std::move(outcome));
  job.job.done = nullptr;  // what it captured is gone before a drain can see the job gone
  pending_jobs_.fetch_sub(1);
}

absl::Status JobQueue::CheckOpen() const {
  if (!closed_.ok()) return closed_;
  if (draining_) return absl::UnavailableError("the server is draining");
  return absl::OkStatus();
}

absl::Status JobQueue::CheckRoom(double flops, size_t bytes) const {
  if (batcher_.jobs() >= limits_.jobs) {
    return absl::ResourceExhaustedError(
        absl::StrCat("queue full: ", batcher_.jobs(), " jobs wait, limit ", limits_.jobs));
  }
  if (batcher_.jobs() == 0) return absl::OkStatus();
  // Reached counts as full for Admit (which asks with 0 of each), exceeded for a job.
  const bool bytes_full = batcher_.bytes() >= limits_.bytes;
  if (bytes_full || bytes > limits_.bytes - batcher_.bytes()) {
    return absl::ResourceExhaustedError(absl::StrCat("queue full: ", batcher_.bytes(),
                                                     " bytes wait, limit ", limits_.bytes,
                                                     ", this job has ", bytes));
  }
  const bool flops_full = batcher_.flops() >= limits_.flops;
  if (flops_full || batcher_.flops() + flops > limits_.flops) {
    return absl::ResourceExhaustedError(absl::StrCat("queue full: ", batcher_.flops(),
                                                     " FLOPs wait, limit ", limits_.flops,
                                                     ", this job has ", flops));
  }
  return absl::OkStatus();
}

std::vector<QueuedJob> JobQueue::Extract(const std::vector<JobId>& ids) {
  std::vector<QueuedJob> extracted;
  if (ids.empty()) return extracted;
  extracted.reserve(ids.size());
  for (const JobId id : ids) {
    const auto it = jobs_.find(id);
    extracted.push_back(std::move(it->second));
    jobs_.erase(it);
  }
  TellChanged();
  return extracted;
}

void JobQueue::TellChanged() {
  events_->OnQueueChanged(batcher_.jobs(), static_cast<int64_t>(batcher_.bytes()));
}

void JobQueue::WaitUntil(CondVar& cv, TimePoint when) {
  if (when == kInfiniteFuture) {
    cv.Wait(&mutex_);
    return;
  }
  // `when` is a time of clock_, which may be a fake: wait as long in real time, then look again.
  cv.WaitUntil(&mutex_, std::chrono::steady_clock::now() + (when - clock_->Now()));
}

void JobQueue::FinishExpired(std::vector<QueuedJob> jobs) {
  for (QueuedJob& queued : jobs) {
    events_->OnCancelled(Stage::kQueue);
    Finish(std::move(queued),
           {.status = absl::DeadlineExceededError("the deadline passed while the product waited")});
  }
}

}  // namespace tcgemm
