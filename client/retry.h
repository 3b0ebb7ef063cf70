// When to try a call again. Policy without threads: time, sleep and chance are passed in.
//
// gRPC's own retries are off: they keep a copy of the request, at most 256 KiB of it by default, so
// they would never retry a large product, and pay for the small ones.
#ifndef TCGEMM_CLIENT_RETRY_H_
#define TCGEMM_CLIENT_RETRY_H_

#include <cstdint>
#include <functional>
#include <optional>

#include "absl/status/status.h"
#include "base/clock.h"

namespace tcgemm::client {

struct RetryPolicy {
  // The n-th wait is random in [1/2, 1] of initial_backoff·2^n, at most of max_backoff: clients
  // that failed together must not come back together.
  Nanos initial_backoff = std::chrono::milliseconds(50);
  Nanos max_backoff = std::chrono::seconds(2);
  // A server that no attempt reaches is given up after this long: somebody waits for the message
  // that says so. Longer than a restart of a process takes to bind its port again.
  Nanos connect_patience = std::chrono::seconds(2);
};

// How one attempt ended.
struct Attempt {
  absl::Status status;
  // There was no connection to send on.
  bool unreachable = false;
  // The server's grpc-retry-pushback-ms. Negative: do not retry.
  std::optional<Nanos> pushback;
};

// The same call may succeed later: what CallWithRetries tries again.
bool MayRetry(const Attempt& attempt);

struct RetryOutcome {
  absl::Status status;  // of the last attempt
  int attempts = 0;
};

struct RetryEnvironment {
  const Clock* clock = Clock::Real();
  std::function<void(Nanos)> sleep;  // required
  uint64_t seed = 0;                 // of the jitter; different for every call
};

// Calls `attempt` with the time that is left of `timeout` (> 0) until it succeeds, fails for good,
// or the next wait would not end in time: then the last failure is returned at once, as it says
// more than DEADLINE_EXCEEDED would. UNAVAILABLE is tried again, and any failure that carries a
// pushback, after that pushback at the earliest.
RetryOutcome CallWithRetries(const RetryPolicy& policy, const RetryEnvironment& environment,
                             Nanos timeout, const std::function<Attempt(Nanos left)>& attempt);

}  // namespace tcgemm::client

#endif  // TCGEMM_CLIENT_RETRY_H_
