// How many connections carry a matrix.
#ifndef TCGEMM_CLIENT_LANE_POLICY_H_
#define TCGEMM_CLIENT_LANE_POLICY_H_

#include <cstddef>

#include "absl/status/status.h"

namespace tcgemm::client {

inline constexpr int kMostLanes = 8;
// ClientOptions.lanes, and what the user gave: as many as help.
inline constexpr int kAutomaticLanes = 0;

// INVALID_ARGUMENT unless it is 0 to kMostLanes.
absl::Status CheckLanes(int lanes);

// The lanes for `bytes` that travel, in or out, from a machine of `cores` cores: 1 below 64 MiB and
// below four cores, else one for every two cores and every 16 MiB, at most kMostLanes. From 16
// cores on: 1 below 16 MiB, else one for every 4 MiB.
int AutomaticLanes(size_t bytes, int cores);
// What `asked` means: itself, or for kAutomaticLanes AutomaticLanes on this machine.
int LanesFor(int asked, size_t bytes);

}  // namespace tcgemm::client

#endif  // TCGEMM_CLIENT_LANE_POLICY_H_
