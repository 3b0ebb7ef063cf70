// Calls at a rate, or as fast as some clients go, and what became of them.
//
// Knows no network: what a call does, the clock and how to wait are passed in, so that tests need
// neither a server nor time.
#ifndef TCGEMM_CLIENT_LOAD_LOAD_GENERATOR_H_
#define TCGEMM_CLIENT_LOAD_LOAD_GENERATOR_H_

#include <array>
#include <cstdint>
#include <functional>
#include <map>

#include "absl/status/status.h"
#include "base/clock.h"
#include "client/client.h"
#include "client/load/arrivals.h"
#include "client/load/latency_histogram.h"

namespace tcgemm::client {

struct LoadOptions {
  ArrivalOptions arrivals;
  // Threads, each with at most one call under way; ≥ 1. In an open loop: as many calls at once.
  int clients = 1;
  // So many failures without a success between them end the run early; > 0. Nobody learns anything
  // from ten seconds of refused connections.
  int64_t give_up_after = 1000;
};

struct CallOutcome {
  absl::Status status;
  MatmulInfo info;  // when the status is OK
};

struct LoadEnvironment {
  const Clock* clock = Clock::Real();
  std::function<void(TimePoint)> sleep_until;  // required; called from every client's thread
};

// The real clock, and a sleep that wakes within microseconds of its time where the system allows
// it: how late a call is sent is part of an open loop's latency.
LoadEnvironment RealLoadEnvironment();

inline constexpr std::array kStageNames = {"receive", "decode", "queue",   "copy_in",
                                           "kernel",  "verify", "copy_out"};

struct LoadReport {
  int64_t sent = 0;
  int64_t succeeded = 0;
  // Of an open loop: due before the end, but no client was free to send them.
  int64_t unsent = 0;
  // options.give_up_after was reached.
  bool gave_up = false;
  std::map<absl::StatusCode, int64_t> failures;
  absl::Status last_failure;
  // Of the calls that succeeded; and of those that waited in vain (DEADLINE_EXCEEDED, unsent) the
  // time that they waited, as leaving them out would make a slow server look fast. Percentiles are
  // lower bounds then.
  LatencyHistogram latency;
  // Of the calls that succeeded, in the order of kStageNames.
  std::array<LatencyHistogram, kStageNames.size()> stages;
  int64_t batched_with_sum = 0;  // over the calls that succeeded
  // How late, at worst, an open loop sent a call: above some milliseconds, more clients are needed.
  Nanos max_send_delay{0};
  // From the start to the last answer or, if later, the end of the schedule.
  Nanos elapsed{0};
};

// Runs `call` in options.clients threads until the arrivals end; `call` gets the number of its
// client, 0 … clients − 1, and one call at a time per client. `on_progress`, which may be empty,
// sees the report after every call, one thread at a time; its `elapsed` is up to now.
LoadReport RunLoad(const LoadOptions& options, const LoadEnvironment& environment,
                   const std::function<CallOutcome(int client)>& call,
                   const std::function<void(const LoadReport&)>& on_progress);

}  // namespace tcgemm::client

#endif  // TCGEMM_CLIENT_LOAD_LOAD_GENERATOR_H_
