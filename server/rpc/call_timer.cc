#include "server/rpc/call_timer.h"

#include <pthread.h>

namespace tcgemm {

CallTimer::CallTimer() : thread_([this] { Loop(); }) {}

CallTimer::~CallTimer() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
  }
  changed_cv_.NotifyOne();
  thread_.join();
}

CallTimer::Ticket CallTimer::Add(TimePoint when, std::weak_ptr<Target> target) {
  if (when == kInfiniteFuture) return {};
  bool earlier;
  Ticket ticket{.when = when};
  {
    MutexLock lock(&mutex_);
    ticket.id = next_id_++;
    entries_.emplace(std::make_pair(when, ticket.id), std::move(target));
    earlier = when < wake_at_;
    if (earlier) wake_at_ = when;
  }
  if (earlier) changed_cv_.NotifyOne();
  return ticket;
}

void CallTimer::Remove(const Ticket& ticket) {
  if (!ticket) return;
  // Destroyed after the lock is gone: it may be the last reference to a control block.
  std::weak_ptr<Target> target;
  MutexLock lock(&mutex_);
  const auto it = entries_.find({ticket.when, ticket.id});
  if (it == entries_.end()) return;
  target = std::move(it->second);
  entries_.erase(it);
}

int64_t CallTimer::wakes() const {
  MutexLock lock(&mutex_);
  return wakes_;
}

void CallTimer::Loop() {
  pthread_setname_np(pthread_self(), "call-timer");
  while (true) {
    std::shared_ptr<Target> due;
    {
      MutexLock lock(&mutex_);
      while (due == nullptr) {
        if (stopping_) return;
        const TimePoint now = Clock::Real()->Now();
        if (now < wake_at_) {
          changed_cv_.WaitUntil(&mutex_, wake_at_);
          ++wakes_;
          continue;
        }
        const auto first = entries_.begin();
        if (first == entries_.end() || now < first->first.first) {
          wake_at_ = first == entries_.end() ? kInfiniteFuture : first->first.first;
          continue;
        }
        due = first->second.lock();
        entries_.erase(first);
      }
    }
    due->OnTime();
  }
}

}  // namespace tcgemm
