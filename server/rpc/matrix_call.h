// What the calls on resident matrices and in streams share: admission, deadline, cancellation, and
// one end.
//
// A call is a sequence of handlers: OnMessage for each request message, OnRequestsEnd, and what
// they Post. They run on the decode pool, one at a time. They ask for what comes next (Read, Write,
// Respond or End), or the call waits for its end by the clock or the client. Reading and writing go
// on side by side: a handler that asks for the next message before it is done with its own lets
// gRPC receive meanwhile, and messages to write queue up.
//
// Threads: as MatmulCall's. All state is behind one mutex; gRPC's operations are started by Pump()
// alone, with no lock held.
#ifndef TCGEMM_SERVER_RPC_MATRIX_CALL_H_
#define TCGEMM_SERVER_RPC_MATRIX_CALL_H_

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/mutex.h"
#include "base/strand.h"
#include "server/rpc/call_context.h"
#include "server/rpc/call_record.h"
#include "server/rpc/matmul_call.h"

namespace tcgemm {

class MatrixCall : public RawReactor,
                   public CallTimer::Target,
                   public std::enable_shared_from_this<MatrixCall> {
 public:
  // Uploads and downloads under way at once: each holds some MiB.

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
  // A message left, and its bytes are free again; not after the last one. On gRPC's thread: it must
  // only enqueue.
  virtual void OnWritten() {}
  // The client has the answer that Respond gave, as far as gRPC can tell: nothing comes after it.
  virtual void OnAnswered() {}
  // A handler: the call has ended, and not by Respond; what it has under way is in vain.
  virtual void OnEnd() {}

  // From any thread. Nothing happens once the call has ended.
  //
  // One message; not again before it is there.
  void Read() ABSL_LOCKS_EXCLUDED(mutex_);
  // The messages that are read now, added up, must be there by then.
  void LimitReadsUntil(TimePoint when) ABSL_LOCKS_EXCLUDED(mutex_);
  // Behind those that wait; the message is taken.
  void Write(grpc::ByteBuffer& message) ABSL_LOCKS_EXCLUDED(mutex_);
  // The last message, and OK.
  void Respond(grpc::ByteBuffer& message) ABSL_LOCKS_EXCLUDED(mutex_);
  void End(absl::Status status, Retry retry = Retry::kNo,
           std::optional<RejectReason> rejected = std::nullopt) ABSL_LOCKS_EXCLUDED(mutex_);
  // Runs `handler` as one of the call's, after those that wait.
  void Post(std::function<void()> handler);

  CallContext* context() const { return context_; }
  Engine* engine() const { return context_->engine; }
  const Caller& caller() const { return record_.caller(); }
  const std::string& peer() const { return peer_; }
  CallRecord& record() { return record_; }
  TimePoint started_at() const { return record_.started_at(); }
  TimePoint deadline() const { return deadline_; }

 private:
  enum class Op { kNone, kRead, kWrite, kRespond, kFinish };

  // gRPC hands a call from thread to thread in ways that ThreadSanitizer cannot see; this one it
  // can.
  void SeeStart() const ABSL_LOCKS_EXCLUDED(mutex_) { MutexLock lock(&mutex_); }
  void Admit();
  // End, by the client or by the clock.
  void Abandon(absl::Status status) ABSL_LOCKS_EXCLUDED(mutex_);
  // Sets the end; false when there was one.
  bool SetEnd(absl::Status status, Retry retry) ABSL_LOCKS_EXCLUDED(mutex_);
  void QueueMessage(grpc::ByteBuffer& message, bool last) ABSL_LOCKS_EXCLUDED(mutex_);
  // Nothing can happen any more but OnDone.
  bool over() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return end_.has_value() && (!writing_ || finishing_);
  }
  Op NextOp() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Perform(Op op) ABSL_LOCKS_EXCLUDED(mutex_);
  void Pump() ABSL_LOCKS_EXCLUDED(mutex_);
  void FinishWithStatus();
  // Gives back what the client may want as soon as it has read the answer.
  void PrepareAnswer() ABSL_LOCKS_EXCLUDED(mutex_);
  // When the next read or write must be done; kInfiniteFuture without one under way.
  TimePoint ReadTime() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  TimePoint WriteTime() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  TimePoint NextTime() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SetTimer() ABSL_LOCKS_EXCLUDED(mutex_);

  CallContext* const context_;
  grpc::CallbackServerContext* const grpc_context_;  // until OnDone
  grpc_call* const grpc_call_;                       // a reference: may be cancelled at any time
  const Kind kind_;
  CallRecord record_;
  const std::string peer_;  // PeerKey
  const TimePoint deadline_;

  Strand strand_;              // of the handlers
  grpc::ByteBuffer request_;   // gRPC's while it reads, then the handler's
  grpc::ByteBuffer response_;  // gRPC's while it writes

  mutable Mutex mutex_;
  std::shared_ptr<MatrixCall> self_ ABSL_GUARDED_BY(mutex_);  // until OnDone
  bool counted_ ABSL_GUARDED_BY(mutex_) = false;
  PeerSlots::Slot transfer_ ABSL_GUARDED_BY(mutex_);
  bool admitted_ ABSL_GUARDED_BY(mutex_) = false;
  bool has_message_ ABSL_GUARDED_BY(mutex_) = false;
  // Nothing came, and nothing will.
  std::optional<TimePoint> ended_empty_at_ ABSL_GUARDED_BY(mutex_);
  CallTimer::Ticket ticket_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mutex_);  // set: the call has ended, and how
  Retry retry_ ABSL_GUARDED_BY(mutex_) = Retry::kNo;
  bool want_read_ ABSL_GUARDED_BY(mutex_) = false;
  bool reading_ ABSL_GUARDED_BY(mutex_) = false;
  TimePoint read_since_ ABSL_GUARDED_BY(mutex_);
  TimePoint reads_until_ ABSL_GUARDED_BY(mutex_) = kInfiniteFuture;
  std::deque<grpc::ByteBuffer> outbox_ ABSL_GUARDED_BY(mutex_);
  bool last_queued_ ABSL_GUARDED_BY(mutex_) = false;  // nothing comes after what outbox_ holds
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  TimePoint write_since_ ABSL_GUARDED_BY(mutex_);
  bool finishing_ ABSL_GUARDED_BY(mutex_) = false;  // the last operation was started
  bool pumping_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace tcgemm

#endif  // TCGEMM_SERVER_RPC_MATRIX_CALL_H_
