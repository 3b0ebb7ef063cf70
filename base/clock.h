// The monotonic clock as an object, so that policy can be tested without sleeping.
#ifndef TCGEMM_BASE_CLOCK_H_
#define TCGEMM_BASE_CLOCK_H_

#include <atomic>
#include <chrono>
#include <cstdint>

namespace tcgemm {

using TimePoint = std::chrono::steady_clock::time_point;
using Nanos = std::chrono::nanoseconds;

inline constexpr TimePoint kInfiniteFuture = TimePoint::max();

// Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual TimePoint Now() const = 0;
  // The process-wide std::chrono::steady_clock. Never destroyed.
  static const Clock* Real();
};

// The time of day, in milliseconds since the epoch: to be shown, never to measure with.
int64_t UnixMilliseconds();

// Starts at one second past the epoch and moves only when told. Thread-safe.
class FakeClock final : public Clock {
 public:
  TimePoint Now() const override { return TimePoint(Nanos(now_ns_.load())); }
  void Advance(Nanos by) { now_ns_.fetch_add(by.count()); }

 private:
  std::atomic<int64_t> now_ns_{1'000'000'000};
};

}  // namespace tcgemm

#endif  // TCGEMM_BASE_CLOCK_H_
