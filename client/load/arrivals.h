// When a load generator's next call is due. Policy without threads: time is passed in.
//
// Closed loop: as soon as a client is free. A slow server then slows its clients down, and with
// them the rate; latencies count from the send.
// Open loop: call i is due at start + i/rate, whatever the server does. A late call stays due when
// it was due: latency counts from there, so that a server that stalls cannot hide the calls that
// would have come meanwhile ("coordinated omission": G. Tene, "How NOT to measure latency").
#ifndef TCGEMM_CLIENT_LOAD_ARRIVALS_H_
#define TCGEMM_CLIENT_LOAD_ARRIVALS_H_

#include <cstdint>
#include <optional>

#include "base/clock.h"

namespace tcgemm::client {

struct ArrivalOptions {
  // Calls per second, at most 10^6; 0: closed loop.
  double rate = 0;
  // The run ends at the first of both; 0: no such limit. At least one is above 0.
  Nanos duration{0};
  int64_t requests = 0;
};

// Not thread-safe.
class Arrivals {
 public:
  Arrivals(const ArrivalOptions& options, TimePoint start);

  // The moment from which the next call's latency counts: `now` or, in an open loop, when it is
  // due, before or after `now`. None when the run is over; then for good. A run has at least one
  // call, however late its threads start.
  std::optional<TimePoint> Next(TimePoint now);
  // Open loop: takes one of the calls that were due by `now` but that Next never gave out, and says
  // how long it had waited when the run ended or, if it has not, until now. None when there are no
  // more.
  std::optional<Nanos> NextUnsent(TimePoint now);
  // Ends the run: Next gives out nothing any more.
  void Stop() { stopped_ = true; }

 private:
  std::optional<TimePoint> Scheduled() const;

  const ArrivalOptions options_;
  const TimePoint start_;
  const TimePoint end_;
  int64_t given_ = 0;
  bool stopped_ = false;
};

}  // namespace tcgemm::client

#endif  // TCGEMM_CLIENT_LOAD_ARRIVALS_H_
