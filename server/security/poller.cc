#include "server/security/poller.h"

#include <pthread.h>

#include <utility>

namespace tcgemm {

Poller::Poller(const char* name, Nanos interval, std::function<void()> work)
    : interval_(interval), work_(std::move(work)) {
  thread_ = std::thread([this] { Loop(); });
  pthread_setname_np(thread_.native_handle(), name);
}

Poller::~Poller() {
  {
    MutexLock lock(&mutex_);
    stopped_ = true;
    stopped_cv_.NotifyAll();
  }
  thread_.join();
}

void Poller::Loop() {
  while (true) {
    {
      MutexLock lock(&mutex_);
      const TimePoint next = Clock::Real()->Now() + interval_;
      while (!stopped_ && stopped_cv_.WaitUntil(&mutex_, next)) {
      }
      if (stopped_) return;
    }
    work_();
  }
}

}  // namespace tcgemm
