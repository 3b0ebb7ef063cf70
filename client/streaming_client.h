// A Client whose products go in streams: for who measures both ways, or does not know sizes.
#ifndef TCGEMM_CLIENT_STREAMING_CLIENT_H_
#define TCGEMM_CLIENT_STREAMING_CLIENT_H_

#include <memory>

#include "absl/status/statusor.h"
#include "client/client.h"

namespace tcgemm::client {

// Matmul is StreamClient::Multiply, with matrices of any size; the rest is Client's. As
// Client::Create.
absl::StatusOr<std::unique_ptr<Client>> CreateStreamingClient(const ClientOptions& options);

}  // namespace tcgemm::client

#endif  // TCGEMM_CLIENT_STREAMING_CLIENT_H_
