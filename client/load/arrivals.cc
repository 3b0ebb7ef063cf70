#include "client/load/arrivals.h"

#include <algorithm>

namespace tcgemm::client {

Arrivals::Arrivals(const ArrivalOptions& options, TimePoint start)
    : options_(options),
      start_(start),
      end_(options.duration > Nanos(0) ? start + options.duration : kInfiniteFuture) {}

// When call given_ of an open loop is due; none when the schedule has no such call. Computed from
// its number: adding up intervals would add up their rounding.
std::optional<TimePoint> Arrivals::Scheduled() const {
  if (options_.requests > 0 && given_ >= options_.requests) return std::nullopt;
  const double seconds = static_cast<double>(given_) / options_.rate;
  const TimePoint due = start_ + Nanos(static_cast<int64_t>(seconds * 1e9));
  if (due >= end_) return std::nullopt;
  return due;
}

std::optional<TimePoint> Arrivals::Next(TimePoint now) {
  if (now >= end_ && given_ > 0) stopped_ = true;
  if (stopped_) return std::nullopt;
  std::optional<TimePoint> due = now;
  if (options_.rate > 0) {
    due = Scheduled();
  } else if (options_.requests > 0 && given_ >= options_.requests) {
    due = std::nullopt;
  }
  if (due.has_value()) {
    ++given_;
  } else {
    stopped_ = true;
  }
  return due;
}

std::optional<Nanos> Arrivals::NextUnsent(TimePoint now) {
  if (options_.rate <= 0) return std::nullopt;
  const std::optional<TimePoint> due = Scheduled();
  if (!due.has_value() || *due > now) return std::nullopt;
  ++given_;
  return std::min(now, end_) - *due;
}

}  // namespace tcgemm::client
