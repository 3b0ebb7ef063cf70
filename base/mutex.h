// Annotated locks over the standard library.
//
// absl::Mutex is banned here: Debian's Abseil is not instrumented, so ThreadSanitizer reports
// correctly locked code as a race (docs/adr/0002-own-mutex.md). These wrappers are TSan-clean and
// carry the attributes that clang's -Wthread-safety checks.
#ifndef TCGEMM_BASE_MUTEX_H_
#define TCGEMM_BASE_MUTEX_H_

#include <chrono>
#include <condition_variable>
#include <mutex>

#include "absl/base/thread_annotations.h"

namespace tcgemm {

class ABSL_LOCKABLE Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() { mutex_.lock(); }
  void Unlock() ABSL_UNLOCK_FUNCTION() { mutex_.unlock(); }
  bool TryLock() ABSL_EXCLUSIVE_TRYLOCK_FUNCTION(true) { return mutex_.try_lock(); }

 private:
  friend class CondVar;
  std::mutex mutex_;
};

class ABSL_SCOPED_LOCKABLE MutexLock {
 public:
  explicit MutexLock(Mutex* mutex) ABSL_EXCLUSIVE_LOCK_FUNCTION(mutex) : mutex_(mutex) {
    mutex_->Lock();
  }
  ~MutexLock() ABSL_UNLOCK_FUNCTION() { mutex_->Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex* const mutex_;
};

// Waits give the mutex up and hold it again on return. Spurious wake-ups happen: wait in a loop.
class CondVar {
 public:
  void Wait(Mutex* mutex) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    std::unique_lock<std::mutex> lock(mutex->mutex_, std::adopt_lock);
    cv_.wait(lock);
    lock.release();
  }

  // False when `deadline` passed first.
  bool WaitUntil(Mutex* mutex, std::chrono::steady_clock::time_point deadline)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    std::unique_lock<std::mutex> lock(mutex->mutex_, std::adopt_lock);
    // A far deadline overflows the system-clock conversion inside libstdc++: wait without one.
    bool in_time = true;
    // (Added to now, not taken from it: TimePoint::min() − now would overflow.)
    if (deadline > std::chrono::steady_clock::now() + std::chrono::hours(24 * 365)) {
      cv_.wait(lock);
    } else {
      in_time = cv_.wait_until(lock, deadline) == std::cv_status::no_timeout;
    }
    lock.release();
    return in_time;
  }

  void NotifyOne() { cv_.notify_one(); }
  void NotifyAll() { cv_.notify_all(); }

 private:
  std::condition_variable cv_;
};

}  // namespace tcgemm

#endif  // TCGEMM_BASE_MUTEX_H_
