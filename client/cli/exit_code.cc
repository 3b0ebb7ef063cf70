#include "client/cli/exit_code.h"

#include <algorithm>

namespace tcgemm::client {

ExitCode ExitCodeOf(const absl::Status& status) {
  if (status.ok()) return ExitCode::kRight;
  if (absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status)) {
    return ExitCode::kUnreachable;
  }
  return ExitCode::kOtherStatus;
}

ExitCode Combine(ExitCode a, ExitCode b) {
  if (a == ExitCode::kWrongResult || b == ExitCode::kWrongResult) return ExitCode::kWrongResult;
  return std::max(a, b);
}

}  // namespace tcgemm::client
