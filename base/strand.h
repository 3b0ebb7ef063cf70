// Tasks one at a time, in order, on the threads of a pool: state that only they touch needs no
// lock.
//
// Thread-safe. The pool must outlive the strand and every task; a task may own what owns the
// strand.
#ifndef TCGEMM_BASE_STRAND_H_
#define TCGEMM_BASE_STRAND_H_

#include <deque>
#include <functional>
#include <memory>

#include "base/mutex.h"
#include "base/thread_pool.h"

namespace tcgemm {

class Strand {
 public:
  // kNext: before all that waits in the pool, as ThreadPool::TryScheduleNext.
  enum class Turn { kLast, kNext };

  explicit Strand(ThreadPool* pool, Turn turn = Turn::kLast);
  Strand(const Strand&) = delete;
  Strand& operator=(const Strand&) = delete;

  // Each task sees what those before it did. Does not wait for the task, unless the pool's queue is
  // full: then what waits here runs in the caller.
  void Post(std::function<void()> task);

 private:
  struct State {
    Mutex mutex;
    std::deque<std::function<void()>> tasks ABSL_GUARDED_BY(mutex);
    bool running ABSL_GUARDED_BY(mutex) = false;  // or scheduled
  };
  static void Run(const std::shared_ptr<State>& state);

  ThreadPool* const pool_;
  const Turn turn_;
  const std::shared_ptr<State> state_;  // the last task may destroy the strand
};

}  // namespace tcgemm

#endif  // TCGEMM_BASE_STRAND_H_
