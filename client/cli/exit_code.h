// How tcgemm-client ends.
#ifndef TCGEMM_CLIENT_CLI_EXIT_CODE_H_
#define TCGEMM_CLIENT_CLI_EXIT_CODE_H_

#include "absl/status/status.h"

namespace tcgemm::client {

enum class ExitCode : int {
  kRight = 0,
  kWrongResult = 1,  // wins over every other
  kUsage = 2,
  kUnreachable = 3,  // UNAVAILABLE, DEADLINE_EXCEEDED
  kOtherStatus = 4,
};

ExitCode ExitCodeOf(const absl::Status& status);

// Of two things that happened, the one that decides: wrong result, then the larger number.
ExitCode Combine(ExitCode a, ExitCode b);

}  // namespace tcgemm::client

#endif  // TCGEMM_CLIENT_CLI_EXIT_CODE_H_
