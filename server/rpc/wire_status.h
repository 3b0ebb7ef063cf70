// absl::Status → grpc::Status: the one place where our statuses leave.
#ifndef TCGEMM_SERVER_RPC_WIRE_STATUS_H_
#define TCGEMM_SERVER_RPC_WIRE_STATUS_H_

#include <grpcpp/support/status.h>

#include "absl/status/status.h"

namespace tcgemm {

// What google.rpc.RetryInfo and grpc-retry-pushback-ms ask of a client.
inline constexpr int kRetryAfterMs = 100;

grpc::Status ToGrpcStatus(const absl::Status& status);
// With google.rpc.RetryInfo in grpc-status-details-bin.
grpc::Status ToGrpcStatusWithRetryInfo(const absl::Status& status);

}  // namespace tcgemm

#endif  // TCGEMM_SERVER_RPC_WIRE_STATUS_H_
