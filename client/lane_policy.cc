#include "client/lane_policy.h"

#include <sched.h>

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace tcgemm::client {
namespace {

// What was measured (docs/adr/0016-lanes.md): with client and server on two cores, lanes are slower
// than one call at every size, since each needs a core at both ends. With 16 cores 4 lanes take 0.5
// to 0.65 of one call's time from 16 MiB on, 8 lanes no more than 4, and less above 64 MiB. What is
// between them is a choice.
constexpr size_t kLeastBytes = size_t{64} << 20;
constexpr size_t kLeastBytesPerLane = size_t{16} << 20;
constexpr int kManyCores = 16;
constexpr size_t kLeastBytesOfMany = size_t{16} << 20;
constexpr size_t kLeastBytesPerLaneOfMany = size_t{4} << 20;
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
  const bool many = cores >= kManyCores;
  if (bytes < (many ? kLeastBytesOfMany : kLeastBytes)) return 1;
  const size_t of_a_lane = many ? kLeastBytesPerLaneOfMany : kLeastBytesPerLane;
  const auto by_bytes = static_cast<int>(std::min<size_t>(bytes / of_a_lane, kMostLanes));
  return std::max(1, std::min(by_bytes, cores / kCoresPerLane));
}

int LanesFor(int asked, size_t bytes) {
  return asked == kAutomaticLanes ? AutomaticLanes(bytes, Cores()) : asked;
}

}  // namespace tcgemm::client
