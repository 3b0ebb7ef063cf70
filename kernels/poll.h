// Waiting for something that can only be asked for: spins first, then sleeps ever longer. Policy
// alone, with the clock and the sleep passed in. Not public.
#ifndef TCGEMM_KERNELS_POLL_H_
#define TCGEMM_KERNELS_POLL_H_

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"

namespace tcgemm {

// How long to sleep after `elapsed` of waiting: not at all for the first 50 µs, since small
// products end within them; then a sixteenth of it, so that a wait ends at most 6 % late, between
// 5 µs (a sleep's own cost) and 1 ms.
Nanos PollPause(Nanos elapsed);

// Asks `reached` until it says true (OK) or fails (its error). DEADLINE_EXCEEDED when `limit` has
// passed on `clock`; it is asked once at least, and once more after the last sleep. A sleep never
// goes beyond the limit.
absl::Status PollUntil(const Clock& clock, Nanos limit,
                       absl::FunctionRef<absl::StatusOr<bool>()> reached,
                       absl::FunctionRef<void(Nanos)> sleep);

}  // namespace tcgemm

#endif  // TCGEMM_KERNELS_POLL_H_
