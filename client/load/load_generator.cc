#include "client/load/load_generator.h"

#include <sys/prctl.h>

#include <algorithm>
#include <optional>
#include <thread>
#include <vector>

#include "base/mutex.h"

namespace tcgemm::client {
namespace {

class LoadRun {
 public:
  LoadRun(const LoadOptions& options, const LoadEnvironment& environment,
          const std::function<void(const LoadReport&)>& on_progress)
      : options_(options),
        clock_(*environment.clock),
        sleep_until_(environment.sleep_until),
        on_progress_(on_progress),
        start_(clock_.Now()),
        arrivals_(options.arrivals, start_) {}

  // Of one client.
  void Loop(int client, const std::function<CallOutcome(int client)>& call) {
    while (const std::optional<TimePoint> due = Next()) {
      if (clock_.Now() < *due) sleep_until_(*due);
      const TimePoint sent = clock_.Now();
      const CallOutcome outcome = call(client);
      Record(outcome, {.due = *due, .sent = sent, .ended = clock_.Now()});
    }
  }

  // After all loops have ended.
  LoadReport Finish() {
    const MutexLock lock(&mutex_);
    const TimePoint now = clock_.Now();
    while (const std::optional<Nanos> waited = arrivals_.NextUnsent(now)) {
      ++report_.unsent;
      report_.latency.Record(*waited);
    }
    if (options_.arrivals.rate > 0) {
      const double calls = static_cast<double>(report_.sent + report_.unsent);
      const Nanos schedule(static_cast<int64_t>(calls / options_.arrivals.rate * 1e9));
      report_.elapsed = std::max(report_.elapsed, schedule);
    }
    return report_;
  }

 private:
  struct CallTimes {
    TimePoint due;
    TimePoint sent;
    TimePoint ended;
  };

  std::optional<TimePoint> Next() {
    const MutexLock lock(&mutex_);
    return arrivals_.Next(clock_.Now());
  }

  void Record(const CallOutcome& outcome, const CallTimes& times) {
    const MutexLock lock(&mutex_);
    ++report_.sent;
    report_.max_send_delay = std::max(report_.max_send_delay, times.sent - times.due);
    report_.elapsed = std::max(report_.elapsed, times.ended - start_);
    if (outcome.status.ok() || absl::IsDeadlineExceeded(outcome.status)) {
      report_.latency.Record(times.ended - times.due);
    }
    if (outcome.status.ok()) {
      RecordSuccess(outcome.info);
    } else {
      RecordFailure(outcome.status);
    }
    if (on_progress_) on_progress_(report_);
  }

  void RecordSuccess(const MatmulInfo& info) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    failures_in_a_row_ = 0;
    ++report_.succeeded;
    report_.batched_with_sum += info.batched_with;
    const std::array<Nanos, kStageNames.size()> stages = {
        info.receive,     info.decode, info.queue,   info.copy_in,
        info.kernel_time, info.verify, info.copy_out};
    for (size_t i = 0; i < stages.size(); ++i) report_.stages[i].Record(stages[i]);
  }

  void RecordFailure(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    ++report_.failures[status.code()];
    report_.last_failure = status;
    if (++failures_in_a_row_ < options_.give_up_after) return;
    report_.gave_up = true;
    arrivals_.Stop();
  }

  const LoadOptions& options_;
  const Clock& clock_;
  const std::function<void(TimePoint)>& sleep_until_;
  const std::function<void(const LoadReport&)>& on_progress_;
  const TimePoint start_;
  Mutex mutex_;
  Arrivals arrivals_ ABSL_GUARDED_BY(mutex_);
  LoadReport report_ ABSL_GUARDED_BY(mutex_);
  int64_t failures_in_a_row_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace

LoadEnvironment RealLoadEnvironment() {
  return {.clock = Clock::Real(), .sleep_until = [](TimePoint due) {
            // Linux wakes a thread up to 50 µs late unless it says that it minds (prctl(2)). A
            // refusal costs precision alone.
            prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL);
            std::this_thread::sleep_until(due);
          }};
}

LoadReport RunLoad(const LoadOptions& options, const LoadEnvironment& environment,
                   const std::function<CallOutcome(int client)>& call,
                   const std::function<void(const LoadReport&)>& on_progress) {
  LoadRun run(options, environment, on_progress);
  std::vector<std::thread> threads;
  threads.reserve(static_cast<size_t>(options.clients));
  for (int client = 0; client < options.clients; ++client) {
    threads.emplace_back([&run, &call, client] { run.Loop(client, call); });
  }
  for (std::thread& thread : threads) thread.join();
  return run.Finish();
}

}  // namespace tcgemm::client
