// One thread that calls back when a time has come: deadlines and timeouts of all calls.
#ifndef TCGEMM_SERVER_RPC_CALL_TIMER_H_
#define TCGEMM_SERVER_RPC_CALL_TIMER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/mutex.h"

namespace tcgemm {

// Thread-safe.
class CallTimer {
 public:
  class Target {
   public:
    virtual ~Target() = default;
    // On the timer's thread, with no lock held. Must be quick.
    virtual void OnTime() = 0;
  };
  // Names an entry; false when there is none.
  struct Ticket {
    TimePoint when;
    uint64_t id = 0;
    explicit operator bool() const { return id != 0; }
  };

  CallTimer();
  // Entries that are left are dropped.
  ~CallTimer();
  CallTimer(const CallTimer&) = delete;
  CallTimer& operator=(const CallTimer&) = delete;

  // An expired target is passed over. Infinite times make no entry.
  Ticket Add(TimePoint when, std::weak_ptr<Target> target) ABSL_LOCKS_EXCLUDED(mutex_);
  // Harmless when it has fired, or fires just now.
  void Remove(const Ticket& ticket) ABSL_LOCKS_EXCLUDED(mutex_);
  // How often the thread has been woken, or has woken by itself.
  int64_t wakes() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void Loop() ABSL_LOCKS_EXCLUDED(mutex_);

  mutable Mutex mutex_;
  CondVar changed_cv_;
  std::map<std::pair<TimePoint, uint64_t>, std::weak_ptr<Target>> entries_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_id_ ABSL_GUARDED_BY(mutex_) = 1;
  // The thread sleeps until then, even if the entry that it is for goes: a call sets a timer some
  // seconds away and ends within a millisecond, and the next one's is later. So it wakes nobody.
  TimePoint wake_at_ ABSL_GUARDED_BY(mutex_) = kInfiniteFuture;
  int64_t wakes_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace tcgemm

#endif  // TCGEMM_SERVER_RPC_CALL_TIMER_H_
