#include "server/rpc/call_deadline.h"

#include <algorithm>
#include <chrono>

namespace tcgemm {

TimePoint SteadyDeadline(const grpc::CallbackServerContext& context, TimePoint now) {
  const auto deadline = context.deadline();
  const auto left = deadline - std::chrono::system_clock::now();
  // Far or infinite deadlines would overflow.
  if (left > std::chrono::hours(24 * 365)) return kInfiniteFuture;
  return now + std::chrono::duration_cast<Nanos>(left);
}

bool IsNearDeadline(TimePoint started_at, TimePoint deadline, TimePoint now) {
  if (deadline == kInfiniteFuture) return false;
  const Nanos slack = std::max<Nanos>(std::chrono::milliseconds(5), (deadline - started_at) / 50);
  return now >= deadline - slack;
}

TimePoint After(TimePoint when, Nanos wait) {
  return wait > kInfiniteFuture - when ? kInfiniteFuture : when + wait;
}

}  // namespace tcgemm
