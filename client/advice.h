// What a person can do about a failed call.
#ifndef TCGEMM_CLIENT_ADVICE_H_
#define TCGEMM_CLIENT_ADVICE_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/clock.h"

namespace tcgemm::client {

struct AdviceContext {
  std::string server;  // as the user wrote it
  Nanos timeout{0};
  int64_t max_message_bytes = 0;  // the server's limit; 0: not known
};

// The message was refused for its size, not because a queue was full.
bool IsRefusedSize(const absl::Status& status);

// One line without a full stop's worth of doubt: the code, what the server or gRPC said, and what
// to do, naming the flag or option. `status` is not OK.
std::string Explain(const absl::Status& status, const AdviceContext& context);

// "UNAVAILABLE"; absl's name of the code.
std::string CodeName(const absl::Status& status);

}  // namespace tcgemm::client

#endif  // TCGEMM_CLIENT_ADVICE_H_
