// What the calls on resident matrices share: admission, deadline, cancellation, and one end.
//
// A call is a sequence of handlers: OnMessage for each request message, OnRequestsEnd, OnWritten
// after each response. Each asks for what comes next (Read, Write, Respond or End), or the call
// waits for its end by the clock or the client. Handlers run on the decode pool, one at a time.
//
// Threads: as MatmulCall's. All state is behind one mutex; gRPC's operations are started by Pump()
// alone, with no lock held.
#ifndef TCGEMM_SERVER_RPC_MATRIX_CALL_H_
#define TCGEMM_SERVER_RPC_MATRIX_CALL_H_

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/mutex.h"
#include "server/rpc/call_context.h"
#include "server/rpc/matmul_call.h"

namespace tcgemm {

class MatrixCall : public RawReactor,
                   public CallTimer::Target,
                   public std::enable_shared_from_this<MatrixCall> {
 public:
  // Uploads and downloads under way at once: each holds some MiB.
  static constexpr int kMaxTransfers = 64;

  // The reactor of a call whose headers have arrived; it owns itself until OnDone.
  static RawReactor* Start(std::shared_ptr<MatrixCall> call);
  ~MatrixCall() override;

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;
  void OnTime() override;

 protected:
  enum class Retry { kNo, kYes };
  enum class Kind { kQuick, kTransfer };

  // `method` must live for ever.
  MatrixCall(CallContext* context, grpc::CallbackServerContext* grpc_context, const char* method,
             Kind kind);

  virtual void OnMessage(const grpc::ByteBuffer& message) = 0;
  // The client has said all it wanted to, after one message at least.
  virtual void OnRequestsEnd() {}
  virtual void OnWritten() {}
  // The client has the answer that Respond gave, as far as gRPC can tell: nothing comes after it.
  virtual void OnAnswered() {}

  // One of these from each handler. Nothing happens once the call has ended.
  void Read() ABSL_LOCKS_EXCLUDED(mutex_);
  void Write(const grpc::ByteBuffer& message) ABSL_LOCKS_EXCLUDED(mutex_);
  // The last message, and OK.
  void Respond(const grpc::ByteBuffer& message) ABSL_LOCKS_EXCLUDED(mutex_);
  void End(absl::Status status, Retry retry = Retry::kNo,
           std::optional<RejectReason> rejected = std::nullopt) ABSL_LOCKS_EXCLUDED(mutex_);

  CallContext* context() const { return context_; }
  Engine* engine() const { return context_->engine; }
  const Caller& caller() const { return caller_; }

 private:
  enum class Op { kNone, kRead, kWrite, kRespond, kFinish };

  // gRPC hands a call from thread to thread in ways that ThreadSanitizer cannot see; this one it
  // can.
  void SeeStart() const ABSL_LOCKS_EXCLUDED(mutex_) { MutexLock lock(&mutex_); }
  void Admit();
  absl::Status CheckAdmission();
  void Schedule(std::function<void()> handler);
  // End, by the client or by the clock.
  void Abandon(absl::Status status) ABSL_LOCKS_EXCLUDED(mutex_);
  Op NextOp() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Perform(Op op) ABSL_LOCKS_EXCLUDED(mutex_);
  void Pump() ABSL_LOCKS_EXCLUDED(mutex_);
  void FinishWithStatus();
  // When the operation that gRPC has now must be done.
  TimePoint NextTime() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SetTimer() ABSL_LOCKS_EXCLUDED(mutex_);

  CallContext* const context_;
  grpc::CallbackServerContext* const grpc_context_;  // until OnDone
  grpc_call* const grpc_call_;                       // a reference: may be cancelled at any time
  const char* const method_;
  const Kind kind_;
  const TimePoint started_at_;
  const TimePoint deadline_;
  const Caller caller_;

  grpc::ByteBuffer request_;   // gRPC's while it reads, then the handler's
  grpc::ByteBuffer response_;  // the handler's until it asks, then gRPC's

  mutable Mutex mutex_;
  std::shared_ptr<MatrixCall> self_ ABSL_GUARDED_BY(mutex_);  // until OnDone
  TimePoint waiting_since_ ABSL_GUARDED_BY(mutex_);
  bool counted_ ABSL_GUARDED_BY(mutex_) = false;
  bool transferring_ ABSL_GUARDED_BY(mutex_) = false;  // in context_->transfers
  bool admitted_ ABSL_GUARDED_BY(mutex_) = false;
  bool has_message_ ABSL_GUARDED_BY(mutex_) = false;
  // Nothing came, and nothing will.
  std::optional<TimePoint> ended_empty_at_ ABSL_GUARDED_BY(mutex_);
  CallTimer::Ticket ticket_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mutex_);  // set: the call has ended, and how
  Retry retry_ ABSL_GUARDED_BY(mutex_) = Retry::kNo;
  Op wanted_ ABSL_GUARDED_BY(mutex_) = Op::kNone;
  Op under_way_ ABSL_GUARDED_BY(mutex_) = Op::kNone;
  bool finishing_ ABSL_GUARDED_BY(mutex_) = false;  // the last operation was started
  bool pumping_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace tcgemm

#endif  // TCGEMM_SERVER_RPC_MATRIX_CALL_H_
