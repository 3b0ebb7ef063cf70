// How a MatmulCall ends: by its client, by the clock, by an error, or well; and the one place that
// starts gRPC's operations.
#include <grpc/grpc.h>
#include <grpcpp/server_context.h>

#include <algorithm>
#include <array>
#include <utility>

#include "server/rpc/call_deadline.h"
#include "server/rpc/matmul_call.h"
#include "server/rpc/wire_status.h"

namespace tcgemm {
namespace {

constexpr Nanos kContentionCheck = std::chrono::milliseconds(250);

}  // namespace

// ---- The end ----

void MatmulCall::OnCancel() {
  SeeStart();
  const TimePoint now = context_->clock->Now();
  if (IsNearDeadline(started_at_, deadline_, now)) {
    Abandon(absl::DeadlineExceededError("the deadline has passed"));
  } else {
    Abandon(absl::CancelledError("the client went away"));
  }
}

void MatmulCall::OnTime() {
  const TimePoint now = context_->clock->Now();
  State state;
  bool due;
  bool no_message;
  {
    MutexLock lock(&mutex_);
    ticket_ = {};
    if (end_.has_value()) return;
    state = state_;
    due = NextTime() <= now;
    no_message = read_failed_;
  }
  const RpcOptions& options = context_->options;
  const bool contended = context_->budget.waiting() > 0;
  if (now >= deadline_) {
    Abandon(absl::DeadlineExceededError("the deadline has passed"));
  } else if (!due) {
    SetTimer();
  } else if (state == State::kWaiting) {
    Reject(RejectReason::kMemory,
           absl::ResourceExhaustedError(
               "too many payloads are being received (--queue-bytes / --max-message-bytes)"),
           Retry::kYes);
  } else if (state == State::kReceiving && no_message) {
    End(absl::InvalidArgumentError("the call ended without a request message"));
  } else if (state == State::kReceiving && !contended &&
             now < After(state_since(), options.receive_timeout)) {
    SetTimer();
  } else if (state == State::kSending && !context_->engine->host_pool().IsWanted() &&
             now < After(state_since(), options.send_timeout)) {
    SetTimer();
  } else if (state == State::kReceiving) {
    Abandon(absl::DeadlineExceededError(
        "the payload did not arrive in time (--receive-timeout, less when others wait)"));
  } else {
    Abandon(absl::DeadlineExceededError(
        "the result was not read in time (--send-timeout, less when others wait)"));
  }
}

TimePoint MatmulCall::state_since() const {
  MutexLock lock(&mutex_);
  return state_since_;
}

TimePoint MatmulCall::NextTime() {
  const RpcOptions& options = context_->options;
  switch (state_) {
    case State::kWaiting:
      return std::min(deadline_, After(state_since_, options.admission_wait));
    case State::kReceiving: {
      if (read_failed_) return std::min(deadline_, After(received_at_, kCancelFollows));
      const Nanos patience = std::min(options.receive_timeout, options.contended_timeout);
      return std::min(deadline_, After(state_since_, patience));
    }
    case State::kDecoding:
    case State::kInEngine:
      return deadline_;
    case State::kSending: {
      const Nanos patience = std::min(options.send_timeout, options.contended_timeout);
      return std::min(deadline_, After(state_since_, patience));
    }
  }
  return deadline_;
}

void MatmulCall::SetTimer() {
  TimePoint when;
  CallTimer::Ticket old;
  {
    MutexLock lock(&mutex_);
    if (end_.has_value()) return;
    // Due already, and still no reason to end: past a patience that nobody waits for.
    when = std::max(NextTime(), context_->clock->Now() + Nanos(1));
    const bool may_go_on = state_ == State::kReceiving || state_ == State::kSending;
    if (may_go_on && NextTime() < context_->clock->Now()) {
      when = context_->clock->Now() + kContentionCheck;
    }
    // An earlier entry looks again when it fires: most calls set their timer once.
    if (ticket_ && ticket_.when <= when) return;
    old = std::exchange(ticket_, {});
  }
  context_->timer.Remove(old);
  const CallTimer::Ticket ticket = context_->timer.Add(when, weak_from_this());
  MutexLock lock(&mutex_);
  ticket_ = ticket;
}

bool MatmulCall::EnterState(State state) {
  MutexLock lock(&mutex_);
  if (end_.has_value()) return false;
  state_ = state;
  state_since_ = context_->clock->Now();
  return true;
}

bool MatmulCall::ended() const {
  MutexLock lock(&mutex_);
  return end_.has_value();
}

void MatmulCall::Reject(RejectReason reason, absl::Status status, Retry retry) {
  End(std::move(status), retry, reason);
}

void MatmulCall::Refuse(const Refusal& refusal) {
  End(refusal.status, refusal.may_retry ? Retry::kYes : Retry::kNo, refusal.reason);
}

void MatmulCall::Abandon(absl::Status status) {
  State state;
  {
    MutexLock lock(&mutex_);
    if (end_.has_value()) return;
    end_ = status;
    state = state_;
  }
  static constexpr Stage kStages[] = {Stage::kReceive, Stage::kReceive, Stage::kDecode,
                                      Stage::kKernel, Stage::kSend};
  // Counted before the client hears of it, like everything about a call.
  if (!Undo(state, status)) context_->events->OnCallCancelled(kStages[static_cast<int>(state)]);
  Pump();
}

void MatmulCall::End(absl::Status status, Retry retry, std::optional<RejectReason> rejected) {
  State state;
  {
    MutexLock lock(&mutex_);
    if (end_.has_value()) return;
    end_ = status;
    retry_ = retry;
    state = state_;
  }
  if (rejected.has_value()) context_->events->OnRejected(*rejected);
  Undo(state, status);
  Pump();
}

bool MatmulCall::Undo(State state, const absl::Status& why) {
  ReceiveBudget::WaitId share_wait;
  BufferPool::WaitId memory_wait;
  JobId job;
  bool writing;
  {
    MutexLock lock(&mutex_);
    share_wait = share_wait_;
    memory_wait = memory_wait_;
    job = job_;
    writing = finishing_;
  }
  switch (state) {
    case State::kWaiting:
      if (share_wait != 0) context_->budget.CancelWait(share_wait);
      return false;
    case State::kReceiving:
      return false;  // OnDone returns the share: until then gRPC may hold what has arrived
    case State::kDecoding:
      if (memory_wait != 0 && context_->engine->host_pool().CancelWait(memory_wait)) DropPayload();
      return false;
    case State::kInEngine:
      return job != 0 && context_->engine->Cancel(job, why);
    case State::kSending:
      if (writing) grpc_call_cancel(grpc_call_, nullptr);
      return false;
  }
  return false;
}

void MatmulCall::OnDone() {
  std::shared_ptr<MatmulCall> self;
  absl::Status status;
  bool admitted;
  bool counted;
  bool receiving;
  TimePoint sending_since;
  CallTimer::Ticket ticket;
  {
    MutexLock lock(&mutex_);
    self = std::move(self_);
    if (!end_.has_value()) end_ = absl::OkStatus();
    status = *end_;
    admitted = admitted_;
    counted = counted_;
    receiving = state_ == State::kWaiting || state_ == State::kReceiving;
    sending_since = state_since_;
    ticket = std::exchange(ticket_, {});
  }
  context_->timer.Remove(ticket);
  if (receiving) DropPayload();
  const TimePoint now = context_->clock->Now();
  if (status.ok()) {
    residents_->OnAnswered();
    std::array<Nanos, kStageCount> stages{};
    const auto note = [&](Stage stage, Nanos time) {
      stages[static_cast<size_t>(stage)] = time;
      context_->events->OnStage(stage, time);
    };
    note(Stage::kReceive, received_at_ - started_at_);
    note(Stage::kDecode, decoded_at_ - received_at_);
    note(Stage::kQueue, job_timings_.queue);
    note(Stage::kCopyIn, job_timings_.copy_in);
    note(Stage::kKernel, job_timings_.kernel);
    note(Stage::kCopyOut, job_timings_.copy_out);
    note(Stage::kSend, now - sending_since);
    record_.NoteStages(stages);
  }
  record_.End(status);
  if (counted) context_->counter.NoteEnded(admitted, status.code());
}

// ---- gRPC's operations ----

MatmulCall::Op MatmulCall::NextOp() {
  if (finishing_) return Op::kNone;
  if (end_.has_value()) {
    finishing_ = true;
    return Op::kFinish;
  }
  if (response_ready_) {
    finishing_ = true;
    return Op::kRespond;
  }
  return std::exchange(want_read_, false) ? Op::kRead : Op::kNone;
}

void MatmulCall::Pump() {
  const std::shared_ptr<MatmulCall> self = shared_from_this();
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

void MatmulCall::Perform(Op op) {
  switch (op) {
    case Op::kNone:
      return;
    case Op::kRead:
      StartRead(&request_);
      return;
    case Op::kRespond:
      record_.NoteAnswer();
      StartWriteAndFinish(&response_, grpc::WriteOptions(), grpc::Status::OK);
      return;
    case Op::kFinish:
      FinishWithStatus();
      return;
  }
}

void MatmulCall::FinishWithStatus() {
  record_.NoteAnswer();
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
