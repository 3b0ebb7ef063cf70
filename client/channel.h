// The connection to a server.
#ifndef TCGEMM_CLIENT_CHANNEL_H_
#define TCGEMM_CLIENT_CHANNEL_H_

#include <grpcpp/channel.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "client/client.h"

namespace tcgemm::client {

// A channel of its own, without gRPC's retries (retry.h says why). Does not connect yet.
// INVALID_ARGUMENT when `server` ("HOST:PORT" or "unix:/path") does not parse.
absl::StatusOr<std::shared_ptr<grpc::Channel>> MakeChannel(const std::string& server);

// The same with options.security; MakeCredentials' errors too.
absl::StatusOr<std::shared_ptr<grpc::Channel>> MakeChannel(const ClientOptions& options);

}  // namespace tcgemm::client

#endif  // TCGEMM_CLIENT_CHANNEL_H_
