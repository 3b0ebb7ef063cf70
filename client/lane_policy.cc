#include "client/lane_policy.h"

#include <sched.h>

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace tcgemm::client {
namespace {

// What was measured: with client and server on two cores, lanes are slower than one call at every
// size (docs/adr/0016-lanes.md): each needs a core at both ends. The numbers below are choices,
// until lanes are measured on a larger machine.
constexpr size_t kLeastBytes = size_t{64} << 20;
constexpr size_t kLeastBytesPerLane = size_t{16} << 20;
constexpr int kCoresPerLane = 2;

int Cores() {
  cpu_set_t cpus;
  if (sched_getaffinity(0, sizeof(cpus), &cpus) != 0) return 1;
  return CPU_COUNT(&cpus);
}

}  // namespace

absl::Status CheckLanes(int lanes) {
  if (lanes >= 0 && lanes <= kMostLanes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("lanes ", lanes, " must be 1 to ", kMostLanes, ", or 0: as many as help"));
}

int AutomaticLanes(size_t bytes, int cores) {
  if (bytes < kLeastBytes) return 1;
  const auto by_bytes = static_cast<int>(std::min<size_t>(bytes / kLeastBytesPerLane, kMostLanes));
  return std::max(1, std::min(by_bytes, cores / kCoresPerLane));
}

int LanesFor(int asked, size_t bytes) {
  return asked == kAutomaticLanes ? AutomaticLanes(bytes, Cores()) : asked;
}

}  // namespace tcgemm::client
