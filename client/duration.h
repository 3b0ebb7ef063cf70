// Durations as people write them: 30s, 500ms, 1.5m.
#ifndef TCGEMM_CLIENT_DURATION_H_
#define TCGEMM_CLIENT_DURATION_H_

#include <chrono>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/clock.h"

namespace tcgemm::client {

// A number ≥ 0 and a unit out of ns us ms s m h. INVALID_ARGUMENT for anything else, a number
// without a unit included, and for more than a year.
absl::StatusOr<Nanos> ParseDuration(absl::string_view text);

// In the largest unit that leaves at least 1: "30s", "1.5ms", "20us".
std::string FormatDuration(Nanos duration);

// In milliseconds, as reports give them.
constexpr double Milliseconds(Nanos duration) {
  return std::chrono::duration<double, std::milli>(duration).count();
}

}  // namespace tcgemm::client

#endif  // TCGEMM_CLIENT_DURATION_H_
