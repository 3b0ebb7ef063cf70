#include "server/rpc/matrix_call.h"

#include <grpc/grpc.h>
#include <grpcpp/server_context.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/rpc/call_deadline.h"
#include "server/rpc/wire_status.h"

namespace tcgemm {

RawReactor* MatrixCall::Start(std::shared_ptr<MatrixCall> call) {
  {
    MutexLock lock(&call->mutex_);
    call->self_ = call;
  }
  call->Admit();
  return call.get();
}

MatrixCall::MatrixCall(CallContext* context, grpc::CallbackServerContext* grpc_context,
                       const char* method, Kind kind)
    : context_(context),
      grpc_context_(grpc_context),
      grpc_call_(grpc_context->c_call()),
      kind_(kind),
      record_(context, *grpc_context, method),
      peer_(PeerKey(grpc_context->peer(), record_.caller())),
      deadline_(SteadyDeadline(*grpc_context, record_.started_at())),
      strand_(&context->decode_pool) {
  grpc_call_ref(grpc_call_);
  context_->live.Add();
}

MatrixCall::~MatrixCall() {
  grpc_call_unref(grpc_call_);
  request_.Clear();
  response_.Clear();
  context_->live.Remove();
}

// ---- Admission ----

void MatrixCall::Admit() {
  // Counted before the flag is looked at: whoever sets it and then waits for idle sees this call.
  const bool counted = context_->counter.TryStart(context_->options.max_inflight);
  {
    MutexLock lock(&mutex_);
    counted_ = counted;
  }
  if (const std::optional<Refusal> refusal = record_.Admit(deadline_)) {
    End(refusal->status, refusal->may_retry ? Retry::kYes : Retry::kNo, refusal->reason);
    return;
  }
  if (!counted) {
    End(absl::ResourceExhaustedError(absl::StrCat("already ", context_->options.max_inflight,
                                                  " calls in flight (--max-inflight)")),
        Retry::kYes, RejectReason::kInflight);
    return;
  }
  if (kind_ == Kind::kTransfer) {
    absl::StatusOr<PeerSlots::Slot> slot = context_->transfer_slots.Take(peer());
    if (!slot.ok()) {
      End(slot.status(), Retry::kYes, RejectReason::kInflight);
      return;
    }
    MutexLock lock(&mutex_);
    transfer_ = *std::move(slot);
  }
  context_->counter.NoteAdmitted();
  {
    MutexLock lock(&mutex_);
    admitted_ = true;
  }
  Read();
}

// ---- Handlers ----

void MatrixCall::Post(std::function<void()> handler) {
  strand_.Post([self = shared_from_this(), handler = std::move(handler)] { handler(); });
}

void MatrixCall::OnReadDone(bool ok) {
  bool empty;
  {
    MutexLock lock(&mutex_);
    reading_ = false;
    if (end_.has_value()) return;
    has_message_ = has_message_ || ok;
    empty = !has_message_;
    if (empty) ended_empty_at_ = context_->clock->Now();
  }
  if (empty) {
    SetTimer();  // a mistake, unless OnCancel follows: then the client left
    return;
  }
  if (!ok && grpc_context_->IsCancelled()) return;  // OnCancel follows, or was here
  Post([this, ok] {
    if (!ok) {
      OnRequestsEnd();
      return;
    }
    // The next read, which the handler may ask for at once, has a buffer of its own.
    grpc::ByteBuffer message;
    message.Swap(&request_);
    record_.NoteRequest(message.Length());
    OnMessage(message);
  });
}

void MatrixCall::OnWriteDone(bool ok) {
  SeeStart();
  const std::shared_ptr<MatrixCall> self = shared_from_this();  // the same for OnDone
  response_.Clear();
  bool ended;
  {
    MutexLock lock(&mutex_);
    writing_ = false;
    ended = end_.has_value();
  }
  if (ok || ended) {
    Pump();  // the next one, or the status that waited for this write
    if (!ended) OnWritten();
  } else {
    Abandon(absl::CancelledError("the client went away"));
  }
}

void MatrixCall::Read() {
  {
    MutexLock lock(&mutex_);
    want_read_ = true;
  }
  SetTimer();
  Pump();
}

void MatrixCall::LimitReadsUntil(TimePoint when) {
  MutexLock lock(&mutex_);
  reads_until_ = when;
}

void MatrixCall::Write(grpc::ByteBuffer& message) { QueueMessage(message, /*last=*/false); }

void MatrixCall::Respond(grpc::ByteBuffer& message) { QueueMessage(message, /*last=*/true); }

void MatrixCall::QueueMessage(grpc::ByteBuffer& message, bool last) {
  record_.NoteResponse(message.Length());
  {
    MutexLock lock(&mutex_);
    if (end_.has_value() || last_queued_) return;
    outbox_.emplace_back();
    outbox_.back().Swap(&message);
    last_queued_ = last;
  }
  SetTimer();
  Pump();
}

// ---- The end ----

bool MatrixCall::SetEnd(absl::Status status, Retry retry) {
  // Messages may hold the last pieces of what others wait for: they go once the lock is free.
  std::deque<grpc::ByteBuffer> unsent;
  MutexLock lock(&mutex_);
  if (end_.has_value()) return false;
  end_ = std::move(status);
  retry_ = retry;
  unsent.swap(outbox_);
  return true;
}

void MatrixCall::End(absl::Status status, Retry retry, std::optional<RejectReason> rejected) {
  if (!SetEnd(std::move(status), retry)) return;
  if (rejected.has_value()) context_->events->OnRejected(*rejected);
  SetTimer();
  Post([this] { OnEnd(); });
  Pump();
}

void MatrixCall::Abandon(absl::Status status) {
  if (!SetEnd(std::move(status), Retry::kNo)) return;
  bool writing;
  {
    MutexLock lock(&mutex_);
    writing = writing_ || finishing_;
  }
  context_->events->OnCallCancelled(writing ? Stage::kSend : Stage::kReceive);
  // A write that nobody reads would keep the call for ever.
  if (writing) grpc_call_cancel(grpc_call_, nullptr);
  Post([this] { OnEnd(); });
  Pump();
}

void MatrixCall::OnCancel() {
  SeeStart();
  const TimePoint now = context_->clock->Now();
  if (IsNearDeadline(started_at(), deadline_, now)) {
    Abandon(absl::DeadlineExceededError("the deadline has passed"));
  } else {
    Abandon(absl::CancelledError("the client went away"));
  }
}

void MatrixCall::OnTime() {
  const TimePoint now = context_->clock->Now();
  bool ended;
  bool empty;
  TimePoint next, write, read;
  {
    MutexLock lock(&mutex_);
    ticket_ = {};
    if (over()) return;
    ended = end_.has_value();
    next = NextTime();
    empty = ended_empty_at_.has_value();
    write = WriteTime();
    read = After(read_since_, context_->options.receive_timeout);
  }
  if (next > now) {
    SetTimer();
  } else if (ended) {
    // The status waits behind a write that nobody reads.
    grpc_call_cancel(grpc_call_, nullptr);
  } else if (now >= deadline_) {
    Abandon(absl::DeadlineExceededError("the deadline has passed"));
  } else if (empty) {
    End(absl::InvalidArgumentError("the call ended without a request message"));
  } else if (now >= write) {
    Abandon(absl::DeadlineExceededError("the answer was not read in time (--send-timeout)"));
  } else if (now >= read) {
    Abandon(absl::DeadlineExceededError("the next message did not arrive (--receive-timeout)"));
  } else {
    Abandon(absl::DeadlineExceededError(
        "an operand arrives slower than 4 MiB within --receive-timeout"));
  }
}

TimePoint MatrixCall::ReadTime() const {
  if (!reading_) return kInfiniteFuture;
  return std::min(reads_until_, After(read_since_, context_->options.receive_timeout));
}

TimePoint MatrixCall::WriteTime() const {
  if (!writing_) return kInfiniteFuture;
  return After(write_since_, context_->options.send_timeout);
}

TimePoint MatrixCall::NextTime() const {
  if (ended_empty_at_.has_value() && !end_.has_value()) {
    return std::min(deadline_, After(*ended_empty_at_, kCancelFollows));
  }
  return std::min({deadline_, end_.has_value() ? kInfiniteFuture : ReadTime(), WriteTime()});
}

void MatrixCall::SetTimer() {
  TimePoint when;
  CallTimer::Ticket old;
  {
    MutexLock lock(&mutex_);
    if (over()) return;
    // What is wanted is under way in a moment, with one of these limits.
    const RpcOptions& options = context_->options;
    const Nanos patience = std::min(options.receive_timeout, options.send_timeout);
    when = std::min(NextTime(), After(context_->clock->Now(), patience));
    // An earlier entry looks again when it fires.
    if (ticket_ && ticket_.when <= when) return;
    old = std::exchange(ticket_, {});
  }
  context_->timer.Remove(old);
  const CallTimer::Ticket ticket = context_->timer.Add(when, weak_from_this());
  MutexLock lock(&mutex_);
  ticket_ = ticket;
}

void MatrixCall::OnDone() {
  std::shared_ptr<MatrixCall> self;
  absl::Status status;
  bool admitted;
  bool counted;
  CallTimer::Ticket ticket;
  {
    MutexLock lock(&mutex_);
    self = std::move(self_);
    if (!end_.has_value()) end_ = absl::OkStatus();
    status = *end_;
    admitted = admitted_;
    counted = counted_;
    ticket = std::exchange(ticket_, {});
    transfer_.Reset();
  }
  context_->timer.Remove(ticket);
  if (status.ok()) OnAnswered();
  record_.End(status);
  if (counted) context_->counter.NoteEnded(admitted, status.code());
}

// ---- gRPC's operations ----

MatrixCall::Op MatrixCall::NextOp() {
  if (finishing_) return Op::kNone;
  if (end_.has_value()) {
    if (writing_) return Op::kNone;  // OnWriteDone comes back here
    finishing_ = true;
    return Op::kFinish;
  }
  if (!writing_ && !outbox_.empty()) {
    response_.Swap(&outbox_.front());
    outbox_.pop_front();
    writing_ = true;
    write_since_ = context_->clock->Now();
    finishing_ = last_queued_ && outbox_.empty();
    return finishing_ ? Op::kRespond : Op::kWrite;
  }
  if (want_read_) {
    want_read_ = false;
    reading_ = true;
    read_since_ = context_->clock->Now();
    return Op::kRead;
  }
  return Op::kNone;
}

void MatrixCall::Pump() {
  const std::shared_ptr<MatrixCall> self = shared_from_this();
  mutex_.Lock();
  if (pumping_) {
    mutex_.Unlock();
    return;  // whoever pumps sees what changed
  }
  pumping_ = true;
  for (Op op = NextOp(); op != Op::kNone; op = NextOp()) {
    mutex_.Unlock();
    Perform(op);
    mutex_.Lock();
  }
  pumping_ = false;
  mutex_.Unlock();
}

void MatrixCall::Perform(Op op) {
  switch (op) {
    case Op::kNone:
      return;
    case Op::kRead:
      StartRead(&request_);
      return;
    case Op::kWrite:
      StartWrite(&response_);
      return;
    case Op::kRespond:
      PrepareAnswer();
      StartWriteAndFinish(&response_, grpc::WriteOptions(), grpc::Status::OK);
      return;
    case Op::kFinish:
      FinishWithStatus();
      return;
  }
}

void MatrixCall::PrepareAnswer() {
  record_.NoteAnswer();
  MutexLock lock(&mutex_);
  transfer_.Reset();
}

void MatrixCall::FinishWithStatus() {
  PrepareAnswer();
  absl::Status status;
  Retry retry;
  {
    MutexLock lock(&mutex_);
    status = *end_;
    retry = retry_;
  }
  if (retry == Retry::kNo) {
    Finish(ToGrpcStatus(status));
    return;
  }
  grpc_context_->AddTrailingMetadata("grpc-retry-pushback-ms", std::to_string(kRetryAfterMs));
  Finish(ToGrpcStatusWithRetryInfo(status));
}

}  // namespace tcgemm
