#include "server/engine/batcher.h"

#include <algorithm>

namespace tcgemm {

void Batcher::Enqueue(const BatchEntry& entry, TimePoint now) {
  Nanos wait = options_.max_delay;
  if (entry.deadline != kInfiniteFuture) {
    wait = std::min(wait, std::max(Nanos(0), Nanos(entry.deadline - now)) / 2);
    deadlines_.emplace(entry.deadline, entry.id);
  }
  Queue& queue = queues_[entry.key];
  const TimePoint ready_at = now + wait;
  queue.jobs.emplace(entry.id, Waiting{entry, ready_at});
  queue.ready_times.emplace(ready_at, entry.id);
  ++jobs_;
  bytes_ += entry.bytes;
  flops_ += entry.flops;
}

bool Batcher::Remove(JobId id) {
  for (auto& [key, queue] : queues_) {
    const auto it = queue.jobs.find(id);
    if (it == queue.jobs.end()) continue;
    Forget(queue, it);
    return true;
  }
  return false;
}

std::vector<JobId> Batcher::TakeExpired(TimePoint now) {
  std::vector<JobId> expired;
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    expired.push_back(deadlines_.begin()->second);
    Remove(expired.back());
  }
  return expired;
}

BatchTake Batcher::Take(TimePoint now) {
  BatchTake take;
  take.expired = TakeExpired(now);
  Queue* oldest = nullptr;
  Prefix oldest_next;
  for (auto& [key, queue] : queues_) {
    if (queue.jobs.empty()) continue;
    const Prefix next = NextBatch(queue);
    if (ReadyAt(queue, next) > now) continue;
    if (oldest == nullptr || queue.jobs.begin()->first < oldest->jobs.begin()->first) {
      oldest = &queue;
      oldest_next = next;
    }
  }
  for (int i = 0; i < oldest_next.count; ++i) {
    take.batch.push_back(oldest->jobs.begin()->first);
    Forget(*oldest, oldest->jobs.begin());
  }
  take.wake = next_deadline();
  for (const auto& [key, queue] : queues_) {
    if (queue.jobs.empty()) continue;
    take.wake = std::min(take.wake, std::max(now, ReadyAt(queue, NextBatch(queue))));
  }
  return take;
}

void Batcher::SetLimits(int max_batch, Nanos max_delay) {
  options_.max_batch = max_batch;
  options_.max_delay = max_delay;
}

TimePoint Batcher::next_deadline() const {
  return deadlines_.empty() ? kInfiniteFuture : deadlines_.begin()->first;
}

bool Batcher::IsLarge(const BatchEntry& entry) const {
  return entry.alone || entry.flops > options_.max_batch_flops ||
         entry.bytes > options_.max_batch_bytes;
}

Batcher::Prefix Batcher::NextBatch(const Queue& queue) const {
  Prefix next;
  double flops = 0;
  size_t bytes = 0;
  for (const auto& [id, waiting] : queue.jobs) {
    const BatchEntry& entry = waiting.entry;
    if (next.count == 0 && IsLarge(entry)) return {.count = 1, .closed = true};
    // `bytes` stays at or below the maximum, so the subtraction cannot wrap.
    const bool fits = !entry.alone && flops + entry.flops <= options_.max_batch_flops &&
                      entry.bytes <= options_.max_batch_bytes - bytes;
    if (!fits) {
      next.closed = true;
      break;
    }
    flops += entry.flops;
    bytes += entry.bytes;
    if (++next.count == options_.max_batch) {
      next.closed = true;
      break;
    }
  }
  return next;
}

TimePoint Batcher::ReadyAt(const Queue& queue, const Prefix& next) const {
  if (draining_ || next.closed || options_.max_delay == Nanos(0)) return TimePoint::min();
  return queue.ready_times.begin()->first;
}

void Batcher::Forget(Queue& queue, std::map<JobId, Waiting>::iterator it) {
  const BatchEntry& entry = it->second.entry;
  if (entry.deadline != kInfiniteFuture) deadlines_.erase({entry.deadline, entry.id});
  queue.ready_times.erase({it->second.ready_at, entry.id});
  --jobs_;
  bytes_ -= entry.bytes;
  flops_ -= entry.flops;
  if (jobs_ == 0) flops_ = 0;  // sums of doubles drift
  queue.jobs.erase(it);
}

}  // namespace tcgemm
