#include "server/rpc/matrix_call.h"

#include <grpc/grpc.h>
#include <grpcpp/server_context.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/rpc/call_deadline.h"
#include "server/rpc/wire_status.h"

namespace tcgemm {
namespace {

// A failed read is followed by OnCancel when the client went away; if it is not by then, the client
// closed its side without a message.
constexpr Nanos kCancelFollows = std::chrono::milliseconds(100);

}  // namespace

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
      method_(method),
      kind_(kind),
      started_at_(context->clock->Now()),
      deadline_(SteadyDeadline(*grpc_context, started_at_)),
      caller_(context->uids.CallerOf(grpc_context->peer())) {
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
  context_->events->OnCallStarted(method_);
  // Counted before the flag is looked at: whoever sets it and then waits for idle sees this call.
  const bool counted = context_->counter.TryStart(context_->options.max_inflight);
  {
    MutexLock lock(&mutex_);
    counted_ = counted;
  }
  if (const absl::Status status = CheckAdmission(); !status.ok()) return;  // it has ended
  if (!counted) {
    End(absl::ResourceExhaustedError(absl::StrCat("already ", context_->options.max_inflight,
                                                  " calls in flight (--max-inflight)")),
        Retry::kYes, RejectReason::kInflight);
    return;
  }
  if (kind_ == Kind::kTransfer) {
    const bool room = context_->transfers.fetch_add(1) < kMaxTransfers;
    {
      MutexLock lock(&mutex_);
      transferring_ = true;
    }
    if (!room) {
      End(absl::ResourceExhaustedError(
              absl::StrCat("already ", kMaxTransfers, " uploads and downloads under way")),
          Retry::kYes, RejectReason::kInflight);
      return;
    }
  }
  context_->counter.NoteAdmitted();
  {
    MutexLock lock(&mutex_);
    admitted_ = true;
  }
  Read();
}

absl::Status MatrixCall::CheckAdmission() {
  absl::Status status;
  RejectReason reason = RejectReason::kDraining;
  if (context_->refusing.load()) {
    status = absl::UnavailableError("the server is draining: try another one");
  } else if (!context_->ready.load()) {
    status = absl::UnavailableError("the server is not ready yet");
    reason = RejectReason::kNotReady;
  } else if (!engine()->healthy()) {
    status = absl::UnavailableError("the device is lost: try another server");
    reason = RejectReason::kNotReady;
  } else if (deadline_ <= started_at_) {
    status = absl::DeadlineExceededError("the deadline had passed when the call arrived");
    reason = RejectReason::kDeadline;
  }
  if (!status.ok()) End(status, Retry::kNo, reason);
  return status;
}

// ---- Handlers ----

void MatrixCall::Schedule(std::function<void()> handler) {
  // A full pool would cost time, not the call.
  if (!context_->decode_pool.TrySchedule(handler)) handler();
}

void MatrixCall::OnReadDone(bool ok) {
  bool empty;
  {
    MutexLock lock(&mutex_);
    under_way_ = Op::kNone;
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
  Schedule([self = shared_from_this(), ok] {
    if (!ok) {
      self->OnRequestsEnd();
      return;
    }
    grpc::ByteBuffer message;
    message.Swap(&self->request_);
    self->OnMessage(message);
  });
}

void MatrixCall::OnWriteDone(bool ok) {
  bool ended;
  {
    MutexLock lock(&mutex_);
    under_way_ = Op::kNone;
    ended = end_.has_value();
  }
  if (ended) {
    Pump();  // the status waited for this write
  } else if (ok) {
    Schedule([self = shared_from_this()] { self->OnWritten(); });
  } else {
    Abandon(absl::CancelledError("the client went away"));
  }
}

void MatrixCall::Read() {
  {
    MutexLock lock(&mutex_);
    wanted_ = Op::kRead;
    waiting_since_ = context_->clock->Now();
  }
  SetTimer();
  Pump();
}

void MatrixCall::Write(const grpc::ByteBuffer& message) {
  {
    MutexLock lock(&mutex_);
    if (end_.has_value()) return;
    response_ = message;
    wanted_ = Op::kWrite;
    waiting_since_ = context_->clock->Now();
  }
  SetTimer();
  Pump();
}

void MatrixCall::Respond(const grpc::ByteBuffer& message) {
  {
    MutexLock lock(&mutex_);
    if (end_.has_value()) return;
    response_ = message;
    wanted_ = Op::kRespond;
    waiting_since_ = context_->clock->Now();
  }
  SetTimer();
  Pump();
}

// ---- The end ----

void MatrixCall::End(absl::Status status, Retry retry, std::optional<RejectReason> rejected) {
  {
    MutexLock lock(&mutex_);
    if (end_.has_value()) return;
    end_ = std::move(status);
    retry_ = retry;
  }
  if (rejected.has_value()) context_->events->OnRejected(*rejected);
  Pump();
}

void MatrixCall::Abandon(absl::Status status) {
  bool writing;
  {
    MutexLock lock(&mutex_);
    if (end_.has_value()) return;
    end_ = std::move(status);
    writing = under_way_ == Op::kWrite || finishing_;
  }
  context_->events->OnCallCancelled(writing ? Stage::kSend : Stage::kReceive);
  // A write that nobody reads would keep the call for ever.
  if (writing) grpc_call_cancel(grpc_call_, nullptr);
  Pump();
}

void MatrixCall::OnCancel() {
  SeeStart();
  const TimePoint now = context_->clock->Now();
  if (IsNearDeadline(started_at_, deadline_, now)) {
    Abandon(absl::DeadlineExceededError("the deadline has passed"));
  } else {
    Abandon(absl::CancelledError("the client went away"));
  }
}

void MatrixCall::OnTime() {
  const TimePoint now = context_->clock->Now();
  bool due;
  bool reading;
  bool empty;
  {
    MutexLock lock(&mutex_);
    ticket_ = {};
    if (end_.has_value()) return;
    due = NextTime() <= now;
    reading = under_way_ == Op::kRead;
    empty = ended_empty_at_.has_value();
  }
  if (!due) {
    SetTimer();
  } else if (now >= deadline_) {
    Abandon(absl::DeadlineExceededError("the deadline has passed"));
  } else if (empty) {
    End(absl::InvalidArgumentError("the call ended without a request message"));
  } else if (reading) {
    Abandon(absl::DeadlineExceededError("the next message did not arrive (--receive-timeout)"));
  } else {
    Abandon(absl::DeadlineExceededError("the answer was not read in time (--send-timeout)"));
  }
}

TimePoint MatrixCall::NextTime() const {
  if (ended_empty_at_.has_value()) {
    return std::min(deadline_, After(*ended_empty_at_, kCancelFollows));
  }
  switch (under_way_) {
    case Op::kNone:
    case Op::kFinish:
      return deadline_;
    case Op::kRead:
      return std::min(deadline_, After(waiting_since_, context_->options.receive_timeout));
    case Op::kWrite:
    case Op::kRespond:
      return std::min(deadline_, After(waiting_since_, context_->options.send_timeout));
  }
  return deadline_;
}

void MatrixCall::SetTimer() {
  TimePoint when;
  CallTimer::Ticket old;
  {
    MutexLock lock(&mutex_);
    if (end_.has_value()) return;
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
  absl::StatusCode code;
  bool admitted;
  bool counted;
  CallTimer::Ticket ticket;
  {
    MutexLock lock(&mutex_);
    self = std::move(self_);
    if (!end_.has_value()) end_ = absl::OkStatus();
    code = end_->code();
    admitted = admitted_;
    counted = counted_;
    ticket = std::exchange(ticket_, {});
    if (transferring_) context_->transfers.fetch_sub(1);
  }
  context_->timer.Remove(ticket);
  if (code == absl::StatusCode::kOk) OnAnswered();
  context_->events->OnCallEnded(method_, code, context_->clock->Now() - started_at_);
  if (counted) context_->counter.NoteEnded(admitted, code);
}

// ---- gRPC's operations ----

MatrixCall::Op MatrixCall::NextOp() {
  if (finishing_) return Op::kNone;
  if (end_.has_value()) {
    if (under_way_ == Op::kWrite) return Op::kNone;  // OnWriteDone comes back here
    finishing_ = true;
    return Op::kFinish;
  }
  const Op op = std::exchange(wanted_, Op::kNone);
  if (op != Op::kNone) under_way_ = op;
  if (op == Op::kRespond) finishing_ = true;
  return op;
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
      StartWriteAndFinish(&response_, grpc::WriteOptions(), grpc::Status::OK);
      return;
    case Op::kFinish:
      FinishWithStatus();
      return;
  }
}

void MatrixCall::FinishWithStatus() {
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
