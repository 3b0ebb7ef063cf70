// A fixed set of worker threads with a bounded queue.
//
// Two users: the decode pool of server/rpc (large copies must not run in a gRPC reaction) and the
// CPU backend's parallel loops (kernels/ owns no threads; it is handed a ParallelRunner).
#ifndef TCGEMM_BASE_THREAD_POOL_H_
#define TCGEMM_BASE_THREAD_POOL_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"

namespace tcgemm {

// Runs the iterations of a loop, possibly at once.
class ParallelRunner {
 public:
  virtual ~ParallelRunner() = default;
  // How many iterations may run at the same time; constant over the runner's life, ≥ 1.
  virtual int width() const = 0;
  // Calls body(index, worker) once for every index in [0, count), worker in [0, width()), no two
  // calls at once with the same worker; returns when all have returned. `body` must not throw, nor
  // call Run. One Run at a time per runner.
  virtual void Run(int64_t count, const std::function<void(int64_t index, int worker)>& body) = 0;
};

// Runs the loop in the caller. Stateless.
class SerialRunner final : public ParallelRunner {
 public:
  int width() const override { return 1; }
  void Run(int64_t count, const std::function<void(int64_t, int)>& body) override {
    for (int64_t i = 0; i < count; ++i) body(i, 0);
  }
};

// Thread-safe. The destructor runs what is queued, then joins.
class ThreadPool {
 public:
  // `threads` ≥ 1 workers, at most `queue_limit` waiting tasks. `name` (≤ 15 bytes) names the
  // threads for ps and debuggers.
  ThreadPool(std::string name, int threads, size_t queue_limit);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  // False, with `task` not run, when the queue is full.
  bool TrySchedule(std::function<void()> task) ABSL_LOCKS_EXCLUDED(mutex_);
  // The same, before all that waits: for the last step of something, behind which only first steps
  // stand.
  bool TryScheduleNext(std::function<void()> task) ABSL_LOCKS_EXCLUDED(mutex_);
  int threads() const { return static_cast<int>(workers_.size()); }

 private:
  enum class Place { kLast, kNext };
  bool TryScheduleAt(Place place, std::function<void()> task) ABSL_LOCKS_EXCLUDED(mutex_);
  void WorkerLoop() ABSL_LOCKS_EXCLUDED(mutex_);

  const std::string name_;
  const size_t queue_limit_;
  Mutex mutex_;
  CondVar work_cv_;
  std::deque<std::function<void()>> queue_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> workers_;
};

// A ParallelRunner on `width` − 1 threads of its own plus the caller. The threads sleep between
// loops: OpenMP's spin after a parallel region would steal the cores that gRPC needs.
class PoolRunner final : public ParallelRunner {
 public:
  explicit PoolRunner(int width);
  ~PoolRunner() override;

  int width() const override { return width_; }
  void Run(int64_t count, const std::function<void(int64_t, int)>& body) override
      ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Loop;
  void WorkerLoop(int worker) ABSL_LOCKS_EXCLUDED(mutex_);

  const int width_;
  Mutex mutex_;
  CondVar start_cv_;
  CondVar done_cv_;
  Loop* loop_ ABSL_GUARDED_BY(mutex_) = nullptr;
  int64_t generation_ ABSL_GUARDED_BY(mutex_) = 0;
  int active_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> workers_;
};

}  // namespace tcgemm

#endif  // TCGEMM_BASE_THREAD_POOL_H_
