#include "server/engine/watchdog.h"

#include <algorithm>

namespace tcgemm {
namespace {

constexpr double kBytesPerSecond = 4e9;
constexpr int kPatience = 50;
constexpr double kLongestSeconds = 24 * 3600;

}  // namespace

Nanos PredictedTime(const BatchWork& work) {
  const double seconds = work.flops / work.flops_per_second + work.bytes / kBytesPerSecond;
  return Nanos(static_cast<int64_t>(std::min(seconds, kLongestSeconds) * 1e9));
}

Nanos WatchdogLimit(const WatchdogTimes& times) {
  const Nanos predicted = std::min<Nanos>(times.predicted, std::chrono::hours(24));
  return std::max(times.minimum, kPatience * predicted);
}

}  // namespace tcgemm
