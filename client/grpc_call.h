// What every call over gRPC shares: its status, its deadline, and whether to try it again.
#ifndef TCGEMM_CLIENT_GRPC_CALL_H_
#define TCGEMM_CLIENT_GRPC_CALL_H_

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/support/status.h>

#include <optional>

#include "absl/status/status.h"
#include "base/clock.h"
#include "client/retry.h"

namespace tcgemm::client {

absl::Status ToAbsl(const grpc::Status& status);

// `left` from now on, on the monotonic clock.
void SetDeadline(Nanos left, grpc::ClientContext& context);

// The trailer of a failed call, by gRPC's retry specification (A6): a number of milliseconds;
// anything else means: do not retry.
std::optional<Nanos> Pushback(const grpc::ClientContext& context);

// There is no connection now.
bool IsUnreachable(grpc::Channel& channel);

// A sleep, and a seed that is different for every call. Thread-safe.
RetryEnvironment RealRetryEnvironment();

}  // namespace tcgemm::client

#endif  // TCGEMM_CLIENT_GRPC_CALL_H_
