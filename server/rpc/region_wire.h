// The messages of a HoldRegion call.
#ifndef TCGEMM_SERVER_RPC_REGION_WIRE_H_
#define TCGEMM_SERVER_RPC_REGION_WIRE_H_

#include <grpcpp/support/byte_buffer.h>

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "server/engine/shared_region.h"
#include "server/rpc/region_socket.h"

namespace tcgemm {

// How large the region is to be, ≥ 1. INVALID_ARGUMENT, with the value, for anything else.
absl::StatusOr<size_t> ParseHoldRegion(const grpc::ByteBuffer& request);

grpc::ByteBuffer EncodeHeldRegion(const SharedRegion& region, const RegionToken& token,
                                  const std::string& socket);

}  // namespace tcgemm

#endif  // TCGEMM_SERVER_RPC_REGION_WIRE_H_
