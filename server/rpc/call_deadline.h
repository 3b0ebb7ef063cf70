// A call's deadline, on our clock.
#ifndef TCGEMM_SERVER_RPC_CALL_DEADLINE_H_
#define TCGEMM_SERVER_RPC_CALL_DEADLINE_H_

#include <grpcpp/server_context.h>

#include "base/clock.h"

namespace tcgemm {

// `now` is the call's start. kInfiniteFuture for none, or one that is years away.
TimePoint SteadyDeadline(const grpc::CallbackServerContext& context, TimePoint now);

// Whether a cancel that comes now is the client's own timer: it fires just before ours, since gRPC
// rounds the timeout that it sends up, by up to 1.6 %.
bool IsNearDeadline(TimePoint started_at, TimePoint deadline, TimePoint now);

// `when` + `wait`, which may be more than there is.
TimePoint After(TimePoint when, Nanos wait);

// A failed read is followed by OnCancel when the client went away; if it is not by then, the client
// closed its side without a message.
inline constexpr Nanos kCancelFollows = std::chrono::milliseconds(100);

}  // namespace tcgemm

#endif  // TCGEMM_SERVER_RPC_CALL_DEADLINE_H_
