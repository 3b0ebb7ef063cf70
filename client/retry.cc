#include "client/retry.h"

#include <algorithm>

#include "matrix/splitmix.h"

namespace tcgemm::client {
namespace {

// In [0, 1).
double Uniform(uint64_t seed, int index) {
  return static_cast<double>(RandomBits(seed, index) >> 11) * 0x1p-53;
}

// A pushback is stretched by up to this share, so that those who got the same do not meet again.
constexpr double kPushbackJitter = 0.1;

class Backoff {
 public:
  Backoff(const RetryPolicy& policy, uint64_t seed)
      : policy_(policy), seed_(seed), ceiling_(policy.initial_backoff) {}

  // The wait after the attempt that ended at `now`; nothing: it was the last.
  std::optional<Nanos> After(const Attempt& attempt, TimePoint now) {
    if (!MayRetry(attempt)) return std::nullopt;
    const double chance = Uniform(seed_, waits_);
    if (attempt.pushback.has_value()) {
      ++waits_;
      return Scale(*attempt.pushback, 1 + kPushbackJitter * chance);
    }
    const Nanos wait = Scale(NextCeiling(), 0.5 + 0.5 * chance);
    if (attempt.unreachable && !unreachable_) unreachable_since_ = now;
    unreachable_ = attempt.unreachable;
    if (unreachable_ && now + wait - unreachable_since_ > policy_.connect_patience) {
      return std::nullopt;
    }
    ++waits_;
    return wait;
  }

 private:
  static Nanos Scale(Nanos wait, double factor) {
    return Nanos(static_cast<int64_t>(static_cast<double>(wait.count()) * factor));
  }
  Nanos NextCeiling() {
    const Nanos ceiling = std::min(ceiling_, policy_.max_backoff);
    ceiling_ = 2 * ceiling;
    return ceiling;
  }

  const RetryPolicy policy_;
  const uint64_t seed_;
  int waits_ = 0;
  Nanos ceiling_;
  bool unreachable_ = false;
  TimePoint unreachable_since_;  // while unreachable_
};

}  // namespace

bool MayRetry(const Attempt& attempt) {
  if (attempt.status.ok()) return false;
  if (attempt.pushback.has_value()) return *attempt.pushback >= Nanos(0);
  return absl::IsUnavailable(attempt.status);
}

RetryOutcome CallWithRetries(const RetryPolicy& policy, const RetryEnvironment& environment,
                             Nanos timeout, const std::function<Attempt(Nanos left)>& attempt) {
  const TimePoint start = environment.clock->Now();
  Backoff backoff(policy, environment.seed);
  RetryOutcome outcome;
  for (Nanos left = timeout; left > Nanos(0); left = timeout - (environment.clock->Now() - start)) {
    const Attempt result = attempt(left);
    ++outcome.attempts;
    outcome.status = result.status;
    const TimePoint now = environment.clock->Now();
    const std::optional<Nanos> wait = backoff.After(result, now);
    if (!wait.has_value() || *wait >= timeout - (now - start)) break;
    environment.sleep(*wait);
  }
  return outcome;
}

}  // namespace tcgemm::client
