// Durations and sizes as operators write them.
#ifndef TCGEMM_SERVER_MAIN_UNITS_H_
#define TCGEMM_SERVER_MAIN_UNITS_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "base/clock.h"

namespace tcgemm {

// "250ms" → ns. Units ns, us, ms, s, m, h; a whole number ≥ 0; INVALID_ARGUMENT otherwise.
absl::StatusOr<Nanos> ParseDuration(const std::string& text);
// "2GiB" → bytes. B, KiB, MiB, GiB, TiB (1024), KB, MB, GB, TB (1000), or none.
absl::StatusOr<uint64_t> ParseBytes(const std::string& text);

}  // namespace tcgemm

#endif  // TCGEMM_SERVER_MAIN_UNITS_H_
