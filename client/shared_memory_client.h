// A Client whose products go through shared memory: for who has matrices anywhere and a server on
// the same machine. Two copies here take the place of the socket; RegionClient needs none.
#ifndef TCGEMM_CLIENT_SHARED_MEMORY_CLIENT_H_
#define TCGEMM_CLIENT_SHARED_MEMORY_CLIENT_H_

#include <memory>

#include "absl/status/statusor.h"
#include "client/client.h"

namespace tcgemm::client {

// Matmul opens a region when it has none that is large enough, writes A and B into it and reads D
// from it, one call at a time; it is not retried. Its errors are RegionClient's. The rest is
// Client's. As RegionClient::Create.
absl::StatusOr<std::unique_ptr<Client>> CreateSharedMemoryClient(const ClientOptions& options);

}  // namespace tcgemm::client

#endif  // TCGEMM_CLIENT_SHARED_MEMORY_CLIENT_H_
