// One call as admission, metrics, the access log and /debug/requests see it: who calls, whether it
// may come in, and the one end that is counted and logged.
#ifndef TCGEMM_SERVER_RPC_CALL_RECORD_H_
#define TCGEMM_SERVER_RPC_CALL_RECORD_H_

#include <grpcpp/server_context.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "kernels/gemm.h"
#include "server/engine/caller.h"
#include "server/rpc/call_context.h"
#include "server/security/access_log.h"
#include "server/security/caller_shares.h"

namespace tcgemm {

// Why a call may not come in.
struct Refusal {
  absl::Status status;
  // Nothing: it counts by its code alone.
  std::optional<RejectReason> reason;
  bool may_retry = false;  // the same call may come in later
};

// Who decides how long a call takes.
enum class CallLength { kServers, kClients };

// Thread-safe.
class CallRecord {
 public:
  // Counts the start of a call whose headers have arrived. `method` must live for ever, `context`
  // outlive the record, `grpc_context` live until End.
  CallRecord(CallContext* context, const grpc::CallbackServerContext& grpc_context,
             const char* method);

  TimePoint started_at() const { return started_at_; }
  // "anonymous" when its credentials are wrong.
  const Caller& caller() const { return caller_; }

  // UNAUTHENTICATED without the credentials that this server wants.
  const absl::Status& credentials() const { return credentials_; }
  // Draining, not ready, credentials, device, deadline: in this order.
  std::optional<Refusal> CheckArrival(TimePoint deadline) const;
  // The same, and then a share of what the caller may have under way, until End.
  std::optional<Refusal> Admit(TimePoint deadline) ABSL_LOCKS_EXCLUDED(mutex_);
  // Operands and results that the call will hold, on top of those before.
  std::optional<Refusal> TakeBytes(size_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);

  // For the access log.
  void NoteRequest(uint64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);
  void NoteResponse(uint64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);
  void NoteShape(const GemmShape& shape) ABSL_LOCKS_EXCLUDED(mutex_);
  void NoteStages(const std::array<Nanos, kStageCount>& stages) ABSL_LOCKS_EXCLUDED(mutex_);

  // Its answer is handed to gRPC now: CallerShares::Share::NoteAnswer.
  void NoteAnswer() ABSL_LOCKS_EXCLUDED(mutex_);
  // The end of the call, once: gives its share back, counts it and logs it. A call that is as long
  // as its client likes is never slow.
  void End(const absl::Status& status, CallLength length = CallLength::kServers)
      ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  std::string TraceId() const;
  void KeepIfNotable(const absl::Status& status, Nanos duration, CallLength length)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  CallContext* const context_;
  const grpc::CallbackServerContext& grpc_context_;
  const char* const method_;
  const TimePoint started_at_;
  absl::Status credentials_;
  Caller caller_;

  Mutex mutex_;
  AccessEntry entry_ ABSL_GUARDED_BY(mutex_);
  CallerShares::Share share_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tcgemm

#endif  // TCGEMM_SERVER_RPC_CALL_RECORD_H_
