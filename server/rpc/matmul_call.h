// One Matmul call, from its headers to its last byte.
//
// Unary on the wire, served as a stream of byte buffers, so that it starts before its payload:
//
//   admit ─► receive ─► decode ─► engine ─► send ─► done
//
// Any stage may be the last: the client goes away, the deadline passes, a budget is used up. End()
// decides once how the call ends and undoes what the stage has under way; OnDone counts it, once.
//
// Threads: gRPC's callback threads, the decode pool, the engine's and the timer's meet here; all
// state is behind one mutex. gRPC's own operations are started by Pump(), which is in one thread at
// a time and holds no lock (an operation may run reactions inside the call), so that none starts
// after the one that finishes the call.
#ifndef TCGEMM_SERVER_RPC_MATMUL_CALL_H_
#define TCGEMM_SERVER_RPC_MATMUL_CALL_H_

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "server/rpc/call_context.h"
#include "server/rpc/call_record.h"
#include "server/rpc/matmul_wire.h"
#include "server/rpc/region_operands.h"
#include "server/rpc/request_residents.h"

namespace tcgemm {

inline constexpr char kMatmulMethod[] = "Matmul";

using RawReactor = grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>;

class MatmulCall final : public RawReactor,
                         public CallTimer::Target,
                         public std::enable_shared_from_this<MatmulCall> {
 public:
  // The reactor of a call whose headers have arrived; it owns itself until OnDone. `context` must
  // outlive every call.
  static RawReactor* Start(CallContext* context, grpc::CallbackServerContext* grpc_context);
  ~MatmulCall() override;

  void OnReadDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;
  void OnTime() override;

 private:
  enum class State { kWaiting, kReceiving, kDecoding, kInEngine, kSending };
  enum class Op { kNone, kRead, kRespond, kFinish };
  // Whether the same message may succeed later.
  enum class Retry { kNo, kYes };

  MatmulCall(CallContext* context, grpc::CallbackServerContext* grpc_context);

  // gRPC hands a call from thread to thread in ways that ThreadSanitizer cannot see; this one it
  // can.
  void SeeStart() const ABSL_LOCKS_EXCLUDED(mutex_) { MutexLock lock(&mutex_); }

  // The stages; each is entered once, by the one before it.
  void Admit();
  // False when it has ended.
  bool CheckAdmission();
  void WaitForShare();
  void OnShare();
  void Decode();
  absl::StatusOr<RequestLayout> ParseRequest();
  void EndWithoutResult(const absl::Status& status);
  void WaitForMemory(size_t bytes);
  void OnMemory(absl::StatusOr<Lease> lease);
  void CopyOperands();
  void OnCopied();
  void Submit();
  void OnOutcome(JobOutcome outcome);
  void Respond(JobOutcome outcome);

  // The first call decides; later ones do nothing.
  void End(absl::Status status, Retry retry = Retry::kNo,
           std::optional<RejectReason> rejected = std::nullopt) ABSL_LOCKS_EXCLUDED(mutex_);
  // End, by the client or by the clock: counted as cancelled in the stage that it was in.
  void Abandon(absl::Status status) ABSL_LOCKS_EXCLUDED(mutex_);
  void Reject(RejectReason reason, absl::Status status, Retry retry);
  void Refuse(const Refusal& refusal);
  // True when the engine dropped the job, which it then counts itself.
  bool Undo(State state, const absl::Status& why) ABSL_LOCKS_EXCLUDED(mutex_);
  // Gives the receive share back, once.
  void ReturnShare() ABSL_LOCKS_EXCLUDED(mutex_);
  void DropPayload();

  Op NextOp() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Perform(Op op) ABSL_LOCKS_EXCLUDED(mutex_);
  void Pump() ABSL_LOCKS_EXCLUDED(mutex_);
  void FinishWithStatus();

  TimePoint state_since() const ABSL_LOCKS_EXCLUDED(mutex_);
  // When OnTime must look again, for the stage that the call is in.
  TimePoint NextTime() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SetTimer() ABSL_LOCKS_EXCLUDED(mutex_);
  // False, and nothing changed, when the call has ended.
  bool EnterState(State state) ABSL_LOCKS_EXCLUDED(mutex_);
  bool ended() const ABSL_LOCKS_EXCLUDED(mutex_);

  CallContext* const context_;
  grpc::CallbackServerContext* const grpc_context_;  // until OnDone
  grpc_call* const grpc_call_;                       // a reference: may be cancelled at any time
  CallRecord record_;
  const TimePoint started_at_;
  const TimePoint deadline_;
  const Caller& caller_;  // record_'s
  const std::string peer_;

  // Touched by one stage at a time.
  grpc::ByteBuffer request_;
  std::vector<grpc::Slice> slices_;
  std::vector<ByteSpan> pieces_;
  RequestFields fields_;
  RequestLayout layout_;
  std::optional<RequestResidents> residents_;
  std::optional<RegionOperands> regions_;
  Lease memory_;
  TimePoint received_at_;
  TimePoint decoded_at_;
  JobTimings job_timings_;
  std::atomic<int> copies_left_{0};
  grpc::ByteBuffer response_;

  mutable Mutex mutex_;
  std::shared_ptr<MatmulCall> self_ ABSL_GUARDED_BY(mutex_);  // until OnDone
  State state_ ABSL_GUARDED_BY(mutex_) = State::kWaiting;
  TimePoint state_since_ ABSL_GUARDED_BY(mutex_);
  bool counted_ ABSL_GUARDED_BY(mutex_) = false;  // in context_->counter's calls under way
  bool admitted_ ABSL_GUARDED_BY(mutex_) = false;
  bool has_share_ ABSL_GUARDED_BY(mutex_) = false;
  ReceiveBudget::WaitId share_wait_ ABSL_GUARDED_BY(mutex_) = 0;
  BufferPool::WaitId memory_wait_ ABSL_GUARDED_BY(mutex_) = 0;
  JobId job_ ABSL_GUARDED_BY(mutex_) = 0;
  CallTimer::Ticket ticket_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mutex_);  // set: the call has ended, and how
  Retry retry_ ABSL_GUARDED_BY(mutex_) = Retry::kNo;
  bool read_failed_ ABSL_GUARDED_BY(mutex_) = false;
  bool want_read_ ABSL_GUARDED_BY(mutex_) = false;
  bool response_ready_ ABSL_GUARDED_BY(mutex_) = false;
  bool finishing_ ABSL_GUARDED_BY(mutex_) = false;  // the last operation was started
  bool pumping_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace tcgemm

#endif  // TCGEMM_SERVER_RPC_MATMUL_CALL_H_
