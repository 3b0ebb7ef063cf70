// The addresses that people write for a server.
#ifndef TCGEMM_CLIENT_ADDRESS_H_
#define TCGEMM_CLIENT_ADDRESS_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tcgemm::client {

// gRPC's target for "HOST:PORT" (a name, an IPv4 address, or an IPv6 address in brackets) or
// "unix:/path". INVALID_ARGUMENT, showing the forms, for anything else. Resolves nothing.
absl::StatusOr<std::string> GrpcTarget(absl::string_view server);

}  // namespace tcgemm::client

#endif  // TCGEMM_CLIENT_ADDRESS_H_
