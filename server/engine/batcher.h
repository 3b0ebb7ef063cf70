// Which waiting jobs share the next launch: policy alone. No thread, no lock, no clock of its own.
//
// A batch is one launch: up to max_batch jobs of one key, in order of arrival, of at most
// max_batch_flops and max_batch_bytes together. A job above either is "large": it launches alone,
// as does one that asks for it. So a job that shares a launch waits for at most max_batch_flops of
// work in it, its own included, and a huge product rides with nobody.
//
// Order: within a key strictly first come, first served; between keys the one whose oldest job is
// older goes first, among those that are ready. So every job is taken after at most as many batches
// as there were jobs before it; no key starves another.
//
// Window: a batch is ready when it can grow no more (max_batch jobs, or the next job does not fit,
// or its first is large), when one of the key's jobs has waited max_delay or half of the time that
// it had to its deadline (waiting for company must not eat the time to compute), when max_delay is
// 0, or when draining.
#ifndef TCGEMM_SERVER_ENGINE_BATCHER_H_
#define TCGEMM_SERVER_ENGINE_BATCHER_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "matrix/dtype.h"
#include "server/engine/job.h"

namespace tcgemm {

struct BatcherOptions {
  int max_batch = 64;  // ≥ 1
  Nanos max_delay{0};
  double max_batch_flops = std::numeric_limits<double>::infinity();
  size_t max_batch_bytes = std::numeric_limits<size_t>::max();
};

// Jobs of one launch share a key: one kernel writes one output type.
using BatchKey = DType;

struct BatchEntry {
  JobId id = 0;  // above every id enqueued before it
  BatchKey key = DType::kBf16;
  double flops = 0;
  size_t bytes = 0;    // of the slab that a device without unified memory would need
  bool alone = false;  // shares its launch with nobody
  TimePoint deadline = kInfiniteFuture;
};

struct BatchTake {
  std::vector<JobId> batch;    // launch these now; empty when nothing is ready
  std::vector<JobId> expired;  // their deadline has passed: never launched
  // When to ask again if nothing is enqueued before: a window ends or a deadline passes. Not after
  // now when another batch is ready already.
  TimePoint wake = kInfiniteFuture;
};

// Not thread-safe. Times must not run backwards.
class Batcher {
 public:
  explicit Batcher(const BatcherOptions& options) : options_(options) {}

  void Enqueue(const BatchEntry& entry, TimePoint now);
  // False when the job does not wait here (taken, expired, removed, never seen).
  bool Remove(JobId id);
  // Drops what has expired, then takes the next batch, if one is ready.
  BatchTake Take(TimePoint now);
  // Drops what has expired, in order of deadline. A deadline equal to now has passed.
  std::vector<JobId> TakeExpired(TimePoint now);
  // From the next Take on, for jobs that wait too; those keep the windows that they came with.
  // max_batch ≥ 1.
  void SetLimits(int max_batch, Nanos max_delay);
  const BatcherOptions& options() const { return options_; }
  // Windows are ignored from now on.
  void Drain() { draining_ = true; }

  // kInfiniteFuture when no waiting job has one.
  TimePoint next_deadline() const;
  int64_t jobs() const { return jobs_; }
  size_t bytes() const { return bytes_; }
  double flops() const { return jobs_ == 0 ? 0 : flops_; }

 private:
  struct Waiting {
    BatchEntry entry;
    TimePoint ready_at;
  };
  struct Queue {
    std::map<JobId, Waiting> jobs;  // ids ascend, so this is the order of arrival
    std::set<std::pair<TimePoint, JobId>> ready_times;
  };
  // The jobs that the next batch of a queue would hold.
  struct Prefix {
    int count = 0;
    bool closed = false;  // it can grow no more
  };

  bool IsLarge(const BatchEntry& entry) const;
  Prefix NextBatch(const Queue& queue) const;
  // When the queue's next batch is ready; TimePoint::min() if that is at once.
  TimePoint ReadyAt(const Queue& queue, const Prefix& next) const;
  void Forget(Queue& queue, std::map<JobId, Waiting>::iterator it);

  BatcherOptions options_;
  std::map<BatchKey, Queue> queues_;
  std::set<std::pair<TimePoint, JobId>> deadlines_;  // finite ones only
  int64_t jobs_ = 0;
  size_t bytes_ = 0;
  double flops_ = 0;
  bool draining_ = false;
};

}  // namespace tcgemm

#endif  // TCGEMM_SERVER_ENGINE_BATCHER_H_
