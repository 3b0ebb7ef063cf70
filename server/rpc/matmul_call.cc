#include "server/rpc/matmul_call.h"

#include <grpc/grpc.h>
#include <grpcpp/server_context.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "server/rpc/call_deadline.h"
#include "server/rpc/slice_owner.h"

namespace tcgemm {
namespace {

// Copies of this size and more do not run in a gRPC reaction.
constexpr size_t kLargeCopyBytes = 256 << 10;
// Nor does the engine's thread write a batch's results of this size: some 50 µs for each 128 KiB.
constexpr size_t kBatchedAnswerBytes = 64 << 10;
// Below this, cutting a copy for several threads costs more than it gains.
constexpr size_t kSplitCopyBytes = 4 << 20;

// A result while gRPC reads it.
struct HeldResult {
  HeldResult(LiveCount* count, Lease result) : live(count), lease(std::move(result)) {}
  LiveHold live;  // goes last
  Lease lease;
};

}  // namespace

RawReactor* MatmulCall::Start(CallContext* context, grpc::CallbackServerContext* grpc_context) {
  const std::shared_ptr<MatmulCall> call(new MatmulCall(context, grpc_context));
  {
    MutexLock lock(&call->mutex_);
    call->self_ = call;
  }
  call->Admit();
  return call.get();
}

MatmulCall::MatmulCall(CallContext* context, grpc::CallbackServerContext* grpc_context)
    : context_(context),
      grpc_context_(grpc_context),
      grpc_call_(grpc_context->c_call()),
      record_(context, *grpc_context, kMatmulMethod),
      started_at_(record_.started_at()),
      deadline_(SteadyDeadline(*grpc_context, started_at_)),
      caller_(record_.caller()),
      peer_(PeerKey(grpc_context->peer(), caller_)),
      residents_(std::in_place, &context->engine->residents(), caller_),
      regions_(std::in_place, &context->engine->regions(), caller_) {
  grpc_call_ref(grpc_call_);
  context_->live.Add();
  MutexLock lock(&mutex_);
  state_since_ = started_at_;
}

MatmulCall::~MatmulCall() {
  grpc_call_unref(grpc_call_);
  request_.Clear();
  response_.Clear();
  memory_.Reset();
  residents_.reset();
  regions_.reset();
  context_->live.Remove();
}

// ---- Admission ----

void MatmulCall::Admit() {
  // Counted before the flag is looked at: whoever sets it and then waits for idle sees this call.
  const bool counted = context_->counter.TryStart(context_->options.max_inflight);
  {
    MutexLock lock(&mutex_);
    counted_ = counted;
  }
  if (!CheckAdmission()) return;
  if (!counted) {
    Reject(RejectReason::kInflight,
           absl::ResourceExhaustedError(absl::StrCat("already ", context_->options.max_inflight,
                                                     " calls in flight (--max-inflight)")),
           Retry::kYes);
    return;
  }
  WaitForShare();
}

bool MatmulCall::CheckAdmission() {
  if (const std::optional<Refusal> refusal = record_.Admit(deadline_)) {
    Refuse(*refusal);
    return false;
  }
  const absl::Status status = context_->engine->Admit(caller_);
  if (status.ok()) return true;
  const bool full = absl::IsResourceExhausted(status);
  Reject(full ? RejectReason::kQueue : RejectReason::kNotReady, status,
         full ? Retry::kYes : Retry::kNo);
  return false;
}

void MatmulCall::WaitForShare() {
  const ReceiveBudget::Outcome outcome =
      context_->budget.Take(peer_, [self = shared_from_this()] { self->OnShare(); });
  if (outcome.granted) {
    OnShare();
    return;
  }
  bool undo;
  {
    MutexLock lock(&mutex_);
    share_wait_ = outcome.wait_id;
    undo = end_.has_value();
  }
  if (undo) {
    context_->budget.CancelWait(outcome.wait_id);
  } else {
    SetTimer();
  }
}

// ---- Receive ----

void MatmulCall::OnShare() {
  bool admitted;
  {
    MutexLock lock(&mutex_);
    has_share_ = true;
    admitted = !end_.has_value();
    if (admitted) {
      state_ = State::kReceiving;
      state_since_ = context_->clock->Now();
      admitted_ = true;
      want_read_ = true;
    }
  }
  if (!admitted) {
    ReturnShare();
    return;
  }
  context_->counter.NoteAdmitted();
  SetTimer();
  Pump();
}

void MatmulCall::OnReadDone(bool ok) {
  SeeStart();
  received_at_ = context_->clock->Now();
  if (ok) {
    Decode();
    return;
  }
  {
    MutexLock lock(&mutex_);
    read_failed_ = true;
  }
  SetTimer();
}

// ---- Decode ----

void MatmulCall::Decode() {
  if (!EnterState(State::kDecoding)) {
    DropPayload();
    return;
  }
  absl::StatusOr<RequestLayout> layout = ParseRequest();
  if (!layout.ok()) {
    DropPayload();
    if (absl::IsResourceExhausted(layout.status())) {
      Reject(RejectReason::kMessage, layout.status(), Retry::kNo);
    } else {
      End(layout.status());
    }
    return;
  }
  layout_ = *layout;
  record_.NoteShape({.m = layout_.a.op_rows(), .n = layout_.b.op_cols(), .k = layout_.a.op_cols()});
  if (const std::optional<Refusal> refusal = record_.TakeBytes(layout_.lease_bytes)) {
    DropPayload();
    Refuse(*refusal);
    return;
  }
  if (const absl::Status made = residents_->MakeResult(fields_, layout_); !made.ok()) {
    DropPayload();
    EndWithoutResult(made);
    return;
  }
  if (layout_.lease_bytes == 0) {
    OnCopied();  // no byte of this product comes or goes
  } else {
    WaitForMemory(layout_.lease_bytes);
  }
}

void MatmulCall::EndWithoutResult(const absl::Status& status) {
  if (!absl::IsResourceExhausted(status)) {
    End(status);
    return;
  }
  const size_t budget = context_->engine->residents().pool().total_bytes();
  Reject(RejectReason::kMemory, status,
         layout_.d.span_bytes() <= budget ? Retry::kYes : Retry::kNo);
}

absl::StatusOr<RequestLayout> MatmulCall::ParseRequest() {
  // gRPC's own limit is a little above ours, so that a message just beyond it gets our words.
  const auto bytes = static_cast<int64_t>(request_.Length());
  record_.NoteRequest(request_.Length());
  if (bytes > context_->options.max_message_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the request has ", bytes, " bytes, limit ", context_->options.max_message_bytes,
        " (--max-message-bytes); MatmulStream takes operands of any size"));
  }
  if (!request_.Dump(&slices_).ok()) return absl::InternalError("unreadable message");
  request_.Clear();
  pieces_.reserve(slices_.size());
  for (const grpc::Slice& slice : slices_) pieces_.push_back({slice.begin(), slice.size()});
  TCGEMM_ASSIGN_OR_RETURN(fields_, ParseMatmulRequest(pieces_));
  TCGEMM_RETURN_IF_ERROR(residents_->Find(fields_));
  TCGEMM_RETURN_IF_ERROR(regions_->Find(fields_));
  TCGEMM_ASSIGN_OR_RETURN(const RequestLayout layout,
                          ValidateRequest(fields_, context_->engine->device_info().pitch_alignment,
                                          context_->engine->host_pool().total_bytes()));
  TCGEMM_RETURN_IF_ERROR(CheckResponseSize(layout));
  return layout;
}

void MatmulCall::WaitForMemory(size_t bytes) {
  BufferPool& pool = context_->engine->host_pool();
  absl::StatusOr<Lease> now = pool.TryLease(bytes, peer_);
  if (now.ok()) return OnMemory(std::move(now));
  // A later lease comes on the thread that gave the piece back, which may be inside gRPC.
  const auto on_lease = [self = shared_from_this()](absl::StatusOr<Lease> lease) {
    auto shared = std::make_shared<absl::StatusOr<Lease>>(std::move(lease));
    const auto task = [self, shared] { self->OnMemory(std::move(*shared)); };
    if (!self->context_->decode_pool.TrySchedule(task)) task();
  };
  const absl::StatusOr<BufferPool::WaitId> wait = pool.LeaseWhenFree(bytes, on_lease, peer_);
  if (!wait.ok()) {
    DropPayload();
    Reject(RejectReason::kMemory, absl::ResourceExhaustedError(wait.status().message()),
           Retry::kNo);
    return;
  }
  if (*wait == 0) return;  // OnMemory is on its way
  bool undo;
  {
    MutexLock lock(&mutex_);
    memory_wait_ = *wait;
    undo = end_.has_value();
  }
  if (undo && pool.CancelWait(*wait)) DropPayload();
}

void MatmulCall::OnMemory(absl::StatusOr<Lease> lease) {
  if (ended() || !lease.ok()) {
    DropPayload();
    if (!lease.ok()) End(lease.status());
    return;
  }
  memory_ = *std::move(lease);
  CopyOperands();
}

void MatmulCall::CopyOperands() {
  const size_t bytes = layout_.operand_bytes();
  const int parts = bytes >= kSplitCopyBytes ? context_->decode_pool.threads() : 1;
  const std::vector<OperandCopy> copies = PlanCopies(layout_, memory_.data(), parts);
  if (bytes < kLargeCopyBytes) {
    for (const OperandCopy& copy : copies) RunCopy(pieces_, copy);
    OnCopied();
    return;
  }
  copies_left_.store(static_cast<int>(copies.size()));
  for (const OperandCopy& copy : copies) {
    const auto task = [self = shared_from_this(), copy] {
      RunCopy(self->pieces_, copy);
      if (self->copies_left_.fetch_sub(1) == 1) self->OnCopied();
    };
    // The queue holds the parts of every call in flight; a full one would cost time, not the call.
    if (!context_->decode_pool.TrySchedule(task)) task();
  }
}

void MatmulCall::OnCopied() {
  decoded_at_ = context_->clock->Now();
  Submit();
  // Behind the submit: to free a thousand slices takes as long as a small product.
  DropPayload();
}

void MatmulCall::DropPayload() {
  pieces_.clear();
  slices_.clear();
  request_.Clear();
  ReturnShare();
}

void MatmulCall::ReturnShare() {
  {
    MutexLock lock(&mutex_);
    if (!std::exchange(has_share_, false)) return;
  }
  context_->budget.Return(peer_);
}

// ---- Engine ----

void MatmulCall::Submit() {
  if (!EnterState(State::kInEngine)) {
    memory_.Reset();
    return;
  }
  Job job{.caller = caller_};
  job.problem = layout_.ProblemIn(memory_.data());
  job.residents = residents_->residents();
  job.regions = regions_->regions();
  job.memory = std::move(memory_);
  job.deadline = deadline_;
  job.fastest = layout_.fastest;
  job.done = [self = shared_from_this()](JobOutcome outcome) {
    self->OnOutcome(std::move(outcome));
  };
  const absl::StatusOr<JobId> id = context_->engine->Submit(std::move(job));
  if (!id.ok()) {
    residents_->DropResult();
    const bool full = absl::IsResourceExhausted(id.status());
    if (full) {
      Reject(RejectReason::kQueue, id.status(), Retry::kYes);
    } else {
      End(id.status());
    }
    return;
  }
  std::optional<absl::Status> end;
  {
    MutexLock lock(&mutex_);
    job_ = *id;
    end = end_;
  }
  if (end.has_value()) context_->engine->Cancel(*id, *end);
}

void MatmulCall::OnOutcome(JobOutcome outcome) {
  if (!outcome.status.ok()) {
    residents_->DropResult();
    End(outcome.status);
    return;
  }
  if (ended()) return;
  // Companions wait for the same thread.
  const size_t few = outcome.batched_with > 0 ? kBatchedAnswerBytes : kLargeCopyBytes;
  if (!layout_.d_in_lease() || layout_.d.span_bytes() < few) {
    Respond(std::move(outcome));
    return;
  }
  // Handing a large result to gRPC may write it to the socket right here: not on the engine's
  // thread. Before the operands that wait to be copied: this call is nearly done.
  auto shared = std::make_shared<JobOutcome>(std::move(outcome));
  const auto task = [self = shared_from_this(), shared] { self->Respond(std::move(*shared)); };
  if (!context_->decode_pool.TryScheduleNext(task)) task();
}

// ---- Send ----

void MatmulCall::Respond(JobOutcome outcome) {
  const std::string handle = residents_->CompleteResult();
  const grpc::Slice header(EncodeResponseHeader(layout_, outcome, received_at_ - started_at_,
                                                decoded_at_ - received_at_, handle));
  std::vector<grpc::Slice> slices = {header};
  if (layout_.d_in_lease()) {
    // gRPC reads D where the kernel wrote it; the lease goes back when it lets go of the slice.
    const SliceOwner<HeldResult> held(&context_->live, std::move(outcome.memory));
    slices.push_back(held.MakeSlice(held->lease.data() + layout_.d_offset, layout_.d.span_bytes()));
  }
  grpc::ByteBuffer response(slices.data(), slices.size());
  record_.NoteResponse(response.Length());
  {
    MutexLock lock(&mutex_);
    // The call may be gone already, OnDone and all: then the result goes with `response`.
    if (end_.has_value()) return;
    job_timings_ = outcome.timings;
    response_.Swap(&response);
    state_ = State::kSending;
    state_since_ = context_->clock->Now();
    response_ready_ = true;
  }
  residents_->Release();
  regions_->Release();
  SetTimer();
  Pump();
}

}  // namespace tcgemm
