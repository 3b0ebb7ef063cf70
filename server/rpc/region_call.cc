#include "server/rpc/region_call.h"

#include <grpc/grpc.h>
#include <grpcpp/server_context.h>

#include <algorithm>
#include <string>
#include <utility>

#include "server/rpc/call_deadline.h"
#include "server/rpc/region_wire.h"
#include "server/rpc/wire_status.h"

namespace tcgemm {
RawReactor* RegionCall::Start(CallContext* context, grpc::CallbackServerContext* grpc_context) {
  const std::shared_ptr<RegionCall> call(new RegionCall(context, grpc_context));
  {
    MutexLock lock(&call->mutex_);
    call->self_ = call;
  }
  call->Admit();
  return call.get();
}

RegionCall::RegionCall(CallContext* context, grpc::CallbackServerContext* grpc_context)
    : context_(context),
      grpc_context_(grpc_context),
      grpc_call_(grpc_context->c_call()),
      record_(context, *grpc_context, kHoldRegionMethod),
      started_at_(record_.started_at()),
      deadline_(SteadyDeadline(*grpc_context, started_at_)),
      peer_(context->uids.Find(grpc_context->peer())) {
  grpc_call_ref(grpc_call_);
  context_->live.Add();
  MutexLock lock(&mutex_);
  state_since_ = started_at_;
}

RegionCall::~RegionCall() {
  grpc_call_unref(grpc_call_);
  request_.Clear();
  response_.Clear();
  context_->live.Remove();
}

// ---- Admission ----

void RegionCall::Admit() {
  std::optional<RejectReason> reason;
  absl::Status status = record_.credentials().ok() ? CheckPlace() : absl::OkStatus();
  if (status.ok()) {
    // Regions have limits of their own, and live long: they are no calls in flight.
    if (const std::optional<Refusal> refusal = record_.CheckArrival(deadline_)) {
      status = refusal->status;
      reason = refusal->reason;
    }
  }
  if (status.ok()) {
    status = context_->held.Add(this, weak_from_this());
    reason = RejectReason::kInflight;
  }
  if (!status.ok()) {
    End(status, absl::IsResourceExhausted(status) ? Retry::kYes : Retry::kNo, reason);
    return;
  }
  {
    MutexLock lock(&mutex_);
    want_read_ = true;
  }
  SetTimer();
  Pump();
}

absl::Status RegionCall::CheckPlace() const {
  if (context_->region_socket == nullptr) {
    return absl::UnimplementedError(
        "this server shares no memory: it runs without --allow-shared-memory");
  }
  if (peer_.has_value()) return absl::OkStatus();
  return absl::UnimplementedError(
      "memory is shared over a unix socket alone (--listen unix:/path): this call came over TCP");
}

// ---- Open ----

void RegionCall::OnReadDone(bool ok) {
  State state;
  {
    MutexLock lock(&mutex_);
    if (end_.has_value()) return;
    state = state_;
  }
  if (!ok && grpc_context_->IsCancelled()) return;  // OnCancel follows, or was here
  if (state == State::kReading) {
    ok ? Open() : End(absl::InvalidArgumentError("the call ended without a request message"));
  } else {
    End(ok ? absl::InvalidArgumentError("HoldRegion takes one message, this is the second")
           : absl::OkStatus());
  }
}

void RegionCall::Open() {
  if (!EnterState(State::kOpening)) return;
  SharedRegionStore& store = context_->engine->regions();
  const absl::StatusOr<size_t> bytes = ParseHoldRegion(request_);
  if (!bytes.ok()) {
    End(bytes.status());
    return;
  }
  const absl::StatusOr<SharedRegionStore::OpenId> id = store.Open(
      record_.caller(), *bytes,
      [self = shared_from_this()](absl::StatusOr<SharedRegionRef> opened) {
        auto shared = std::make_shared<absl::StatusOr<SharedRegionRef>>(std::move(opened));
        const auto task = [self, shared] { self->OnOpen(std::move(*shared)); };
        if (!self->context_->decode_pool.TrySchedule(task)) task();
      });
  if (!id.ok()) {
    if (absl::IsResourceExhausted(id.status())) {
      End(id.status(), *bytes <= store.largest_bytes() ? Retry::kYes : Retry::kNo,
          RejectReason::kMemory);
    } else {
      End(id.status());
    }
    return;
  }
  bool undo;
  {
    MutexLock lock(&mutex_);
    opening_ = *id;
    undo = end_.has_value();
  }
  if (undo) store.CancelOpen(*id);
}

void RegionCall::OnOpen(absl::StatusOr<SharedRegionRef> region) {
  if (!region.ok()) {
    const bool full = absl::IsResourceExhausted(region.status());
    End(region.status(), full ? Retry::kYes : Retry::kNo,
        full ? std::optional(RejectReason::kMemory) : std::nullopt);
    return;
  }
  const absl::StatusOr<RegionToken> token = context_->region_socket->Offer(*region, peer_->uid);
  if (token.ok() && Keep(*region, *token)) {
    SetTimer();
    Pump();
    return;
  }
  GiveBack(*std::move(region), token.value_or(RegionToken{}));
  if (!token.ok()) End(token.status());
}

bool RegionCall::Keep(SharedRegionRef& region, const RegionToken& token) {
  MutexLock lock(&mutex_);
  if (end_.has_value()) return false;
  response_ = EncodeHeldRegion(*region, token, peer_->region_socket);
  state_ = State::kAnswering;
  state_since_ = context_->clock->Now();
  want_write_ = true;
  token_ = token;
  region_ = std::move(region);
  return true;
}

void RegionCall::GiveBack(SharedRegionRef region, const RegionToken& token) {
  context_->region_socket->Withdraw(token);
  context_->engine->regions().Close(region);
}

void RegionCall::OnWriteDone(bool ok) {
  bool ended;
  {
    MutexLock lock(&mutex_);
    writing_ = false;
    ended = end_.has_value();
    if (!ended && ok) {
      state_ = State::kHolding;
      want_read_ = true;  // its failure is the client's end of the call
    }
  }
  if (!ended && !ok) Abandon(absl::CancelledError("the client went away"));
  SetTimer();
  Pump();
}

bool RegionCall::EnterState(State state) {
  MutexLock lock(&mutex_);
  if (end_.has_value()) return false;
  state_ = state;
  state_since_ = context_->clock->Now();
  return true;
}

// ---- The end ----

bool RegionCall::Close(absl::Status status, Retry retry) {
  SharedRegionRef region;
  RegionToken token;
  SharedRegionStore::OpenId opening;
  {
    MutexLock lock(&mutex_);
    if (end_.has_value()) return false;
    end_ = std::move(status);
    retry_ = retry;
    region = std::move(region_);
    token = token_;
    opening = opening_;
  }
  // Before the client hears of it, who may want the room.
  if (opening != 0) context_->engine->regions().CancelOpen(opening);
  if (region != nullptr) GiveBack(std::move(region), token);
  return true;
}

void RegionCall::End(absl::Status status, Retry retry, std::optional<RejectReason> rejected) {
  if (!Close(std::move(status), retry)) return;
  if (rejected.has_value()) context_->events->OnRejected(*rejected);
  Pump();
}

void RegionCall::Abandon(absl::Status status) {
  if (!Close(std::move(status), Retry::kNo)) return;
  bool writing;
  {
    MutexLock lock(&mutex_);
    writing = writing_;
  }
  context_->events->OnCallCancelled(writing ? Stage::kSend : Stage::kReceive);
  // A write that nobody reads would keep the call for ever.
  if (writing) grpc_call_cancel(grpc_call_, nullptr);
  Pump();
}

void RegionCall::OnCancel() {
  SeeStart();
  if (IsNearDeadline(started_at_, deadline_, context_->clock->Now())) {
    Abandon(absl::DeadlineExceededError("the deadline has passed"));
  } else {
    Abandon(absl::CancelledError("the client went away"));
  }
}

void RegionCall::OnDrained() {
  End(absl::UnavailableError("the server has drained, and its regions are gone: try another one"),
      Retry::kNo, RejectReason::kDraining);
}

void RegionCall::OnTime() {
  const TimePoint now = context_->clock->Now();
  bool due;
  State state;
  {
    MutexLock lock(&mutex_);
    ticket_ = {};
    if (end_.has_value()) return;
    due = NextTime() <= now;
    state = state_;
  }
  if (!due) {
    SetTimer();
  } else if (now >= deadline_) {
    Abandon(absl::DeadlineExceededError("the deadline has passed: set none to hold a region"));
  } else if (state == State::kReading) {
    Abandon(absl::DeadlineExceededError("the request did not arrive (--receive-timeout)"));
  } else {
    Abandon(absl::DeadlineExceededError("the answer was not read in time (--send-timeout)"));
  }
}

TimePoint RegionCall::NextTime() const {
  switch (state_) {
    case State::kReading:
      return std::min(deadline_, After(state_since_, context_->options.receive_timeout));
    case State::kAnswering:
      return std::min(deadline_, After(state_since_, context_->options.send_timeout));
    case State::kOpening:
    case State::kHolding:
      return deadline_;
  }
  return deadline_;
}

void RegionCall::SetTimer() {
  TimePoint when;
  CallTimer::Ticket old;
  {
    MutexLock lock(&mutex_);
    if (end_.has_value()) return;
    when = NextTime();
    // An earlier entry looks again when it fires.
    if (ticket_ && ticket_.when <= when) return;
    old = std::exchange(ticket_, {});
  }
  context_->timer.Remove(old);
  const CallTimer::Ticket ticket = context_->timer.Add(when, weak_from_this());
  MutexLock lock(&mutex_);
  ticket_ = ticket;
}

void RegionCall::OnDone() {
  std::shared_ptr<RegionCall> self;
  absl::Status status;
  CallTimer::Ticket ticket;
  {
    MutexLock lock(&mutex_);
    self = std::move(self_);
    status = end_.value_or(absl::UnknownError(""));
    ticket = std::exchange(ticket_, {});
  }
  context_->held.Remove(this);
  context_->timer.Remove(ticket);
  record_.End(status, CallLength::kClients);
}

// ---- gRPC's operations ----

RegionCall::Op RegionCall::NextOp() {
  if (finishing_) return Op::kNone;
  if (end_.has_value()) {
    if (writing_) return Op::kNone;  // OnWriteDone comes back here
    finishing_ = true;
    return Op::kFinish;
  }
  if (std::exchange(want_write_, false)) {
    writing_ = true;
    return Op::kWrite;
  }
  return std::exchange(want_read_, false) ? Op::kRead : Op::kNone;
}

void RegionCall::Pump() {
  const std::shared_ptr<RegionCall> self = shared_from_this();
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

void RegionCall::Perform(Op op) {
  switch (op) {
    case Op::kNone:
      return;
    case Op::kRead:
      StartRead(&request_);
      return;
    case Op::kWrite:
      StartWrite(&response_);
      return;
    case Op::kFinish:
      FinishWithStatus();
      return;
  }
}

void RegionCall::FinishWithStatus() {
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
