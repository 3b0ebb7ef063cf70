// Why an engine serves no more.
#ifndef TCGEMM_SERVER_ENGINE_FATAL_H_
#define TCGEMM_SERVER_ENGINE_FATAL_H_

#include "absl/status/status.h"

namespace tcgemm {

enum class FatalCause {
  kDeviceLost,  // a sticky error: every later call to the device fails
  kWatchdog,    // a batch is overdue: the device has hung
};

struct FatalError {
  FatalCause cause = FatalCause::kDeviceLost;
  absl::Status status;  // not OK; for people
};

}  // namespace tcgemm

#endif  // TCGEMM_SERVER_ENGINE_FATAL_H_
