#include "kernels/poll.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tcgemm {

Nanos PollPause(Nanos elapsed) {
  using std::chrono::microseconds;
  using std::chrono::milliseconds;
  if (elapsed < microseconds(50)) return Nanos(0);
  return std::clamp<Nanos>(elapsed / 16, microseconds(5), milliseconds(1));
}

absl::Status PollUntil(const Clock& clock, Nanos limit,
                       absl::FunctionRef<absl::StatusOr<bool>()> reached,
                       absl::FunctionRef<void(Nanos)> sleep) {
  const TimePoint start = clock.Now();
  for (;;) {
    // Before the question: what is reached at the limit is not late.
    const Nanos elapsed = clock.Now() - start;
    TCGEMM_ASSIGN_OR_RETURN(const bool done, reached());
    if (done) return absl::OkStatus();
    if (elapsed >= limit) {
      return absl::DeadlineExceededError(
          absl::StrCat("not reached after ", std::chrono::duration<double>(elapsed).count(), " s"));
    }
    const Nanos pause = std::min(PollPause(elapsed), limit - elapsed);
    if (pause > Nanos(0)) sleep(pause);
  }
}

}  // namespace tcgemm
