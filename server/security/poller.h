// Something that is done every second on a thread of its own.
#ifndef TCGEMM_SERVER_SECURITY_POLLER_H_
#define TCGEMM_SERVER_SECURITY_POLLER_H_

#include <functional>
#include <thread>

#include "base/clock.h"
#include "base/mutex.h"

namespace tcgemm {

class Poller {
 public:
  // Runs `work` after each `interval`, from now until the end. `name`: the thread's, at most 15
  // characters.
  Poller(const char* name, Nanos interval, std::function<void()> work);
  // Waits for work that is under way.
  ~Poller();
  Poller(const Poller&) = delete;
  Poller& operator=(const Poller&) = delete;

 private:
  void Loop();

  const Nanos interval_;
  const std::function<void()> work_;
  Mutex mutex_;
  CondVar stopped_cv_;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace tcgemm

#endif  // TCGEMM_SERVER_SECURITY_POLLER_H_
