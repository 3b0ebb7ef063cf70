#include "server/main/signals.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

namespace tcgemm {
namespace {

constexpr int kNotification = SIGUSR1;

sigset_t WaitedSignals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int number : {SIGTERM, SIGINT, SIGHUP, kNotification}) sigaddset(&set, number);
  return set;
}

}  // namespace

void BlockSignals() {
  const sigset_t set = WaitedSignals();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  signal(SIGPIPE, SIG_IGN);
}

Wake WaitForSignal(TimePoint deadline) {
  const sigset_t set = WaitedSignals();
  while (true) {
    // At most a minute at a time: far deadlines fit no timespec.
    const Nanos left = std::clamp<Nanos>(deadline - std::min(deadline, Clock::Real()->Now()),
                                         Nanos(0), std::chrono::minutes(1));
    const timespec timeout = {.tv_sec = left.count() / 1'000'000'000,
                              .tv_nsec = left.count() % 1'000'000'000};
    const int number = sigtimedwait(&set, nullptr, &timeout);
    if (number == kNotification) return Wake::kNotified;
    if (number == SIGHUP) return Wake::kReload;
    if (number > 0) return Wake::kTerminate;
    if (Clock::Real()->Now() >= deadline) return Wake::kTimeout;
  }
}

void NotifyMainThread() { kill(getpid(), kNotification); }

}  // namespace tcgemm
