#include "base/thread_pool.h"

#include <pthread.h>

#include <atomic>
#include <utility>

namespace tcgemm {
namespace {

void NameThisThread(const std::string& name) {
  pthread_setname_np(pthread_self(), name.substr(0, 15).c_str());
}

}  // namespace

ThreadPool::ThreadPool(std::string name, int threads, size_t queue_limit)
    : name_(std::move(name)), queue_limit_(queue_limit) {
  workers_.reserve(threads);
  for (int i = 0; i < threads; ++i) workers_.emplace_back([this] { WorkerLoop(); });
}

ThreadPool::~ThreadPool() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
  }
  work_cv_.NotifyAll();
  for (std::thread& worker : workers_) worker.join();
}

bool ThreadPool::TrySchedule(std::function<void()> task) {
  return TryScheduleAt(Place::kLast, std::move(task));
}

bool ThreadPool::TryScheduleNext(std::function<void()> task) {
  return TryScheduleAt(Place::kNext, std::move(task));
}

bool ThreadPool::TryScheduleAt(Place place, std::function<void()> task) {
  {
    MutexLock lock(&mutex_);
    if (queue_.size() >= queue_limit_) return false;
    queue_.insert(place == Place::kNext ? queue_.begin() : queue_.end(), std::move(task));
  }
  work_cv_.NotifyOne();
  return true;
}

void ThreadPool::WorkerLoop() {
  NameThisThread(name_);
  while (true) {
    std::function<void()> task;
    {
      MutexLock lock(&mutex_);
      while (queue_.empty() && !stopping_) work_cv_.Wait(&mutex_);
      if (queue_.empty()) return;
      task = std::move(queue_.front());
      queue_.pop_front();
    }
    task();
  }
}

// Iterations are claimed one by one from `next`, so uneven ones balance themselves.
struct PoolRunner::Loop {
  int64_t count;
  const std::function<void(int64_t, int)>* body;
  std::atomic<int64_t> next{0};

  void Work(int worker) {
    for (int64_t i = next.fetch_add(1); i < count; i = next.fetch_add(1)) (*body)(i, worker);
  }
};

PoolRunner::PoolRunner(int width) : width_(width) {
  for (int worker = 1; worker < width_; ++worker) {
    workers_.emplace_back([this, worker] { WorkerLoop(worker); });
  }
}

PoolRunner::~PoolRunner() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
  }
  start_cv_.NotifyAll();
  for (std::thread& worker : workers_) worker.join();
}

void PoolRunner::Run(int64_t count, const std::function<void(int64_t, int)>& body) {
  Loop loop{.count = count, .body = &body};
  const bool share = count > 1 && width_ > 1;
  if (share) {
    MutexLock lock(&mutex_);
    loop_ = &loop;
    ++generation_;
  }
  if (share) start_cv_.NotifyAll();
  loop.Work(0);
  if (share) {
    // Workers that have not woken yet find loop_ null and go back to sleep.
    MutexLock lock(&mutex_);
    loop_ = nullptr;
    while (active_ > 0) done_cv_.Wait(&mutex_);
  }
}

void PoolRunner::WorkerLoop(int worker) {
  NameThisThread("tcgemm-cpu" + std::to_string(worker));
  int64_t seen = 0;
  while (true) {
    Loop* loop;
    {
      MutexLock lock(&mutex_);
      while (!stopping_ && (loop_ == nullptr || generation_ == seen)) start_cv_.Wait(&mutex_);
      if (stopping_) return;
      seen = generation_;
      loop = loop_;
      ++active_;
    }
    loop->Work(worker);
    MutexLock lock(&mutex_);
    if (--active_ == 0) done_cv_.NotifyAll();
  }
}

}  // namespace tcgemm
