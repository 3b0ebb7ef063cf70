#include "server/rpc/stream_call.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/stream_copy.h"
#include "server/rpc/call_deadline.h"

namespace tcgemm {
namespace {

// Shorter pieces are copied through the caches (ADR 10).
constexpr size_t kStreamPieceBytes = 2048;

grpc::ByteBuffer Message(const std::string& bytes) {
  const grpc::Slice slice(bytes);
  return grpc::ByteBuffer(&slice, 1);
}

size_t DenseBytes(const MatrixView& view) {
  return static_cast<size_t>(view.rows) * static_cast<size_t>(view.cols) * DTypeSize(view.dtype);
}

double PaddedBytes(const MatrixView& view) {
  return static_cast<double>(view.rows) * static_cast<double>(view.ld) *
         static_cast<double>(DTypeSize(view.dtype));
}

// Dense rows of `row_bytes` each, which lie `pitch` bytes apart at `base`.
struct Rows {
  std::byte* base = nullptr;
  size_t row_bytes = 0;
  size_t pitch = 0;
};

void CopyPiece(std::byte* to, const std::byte* from, size_t bytes) {
  bytes >= kStreamPieceBytes ? StreamCopy(to, from, bytes)
                             : static_cast<void>(std::memcpy(to, from, bytes));
}

// `bytes` become those of the rows from dense byte `offset` on.
void CopyToRows(const Rows& rows, size_t offset, HostBytes bytes) {
  if (rows.pitch == rows.row_bytes) {
    CopyPiece(rows.base + offset, bytes.data(), bytes.size());
    return;
  }
  while (!bytes.empty()) {
    const size_t column = offset % rows.row_bytes;
    const size_t count = std::min(bytes.size(), rows.row_bytes - column);
    CopyPiece(rows.base + offset / rows.row_bytes * rows.pitch + column, bytes.data(), count);
    bytes.remove_prefix(count);
    offset += count;
  }
}

absl::Status InField(const char* field, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(field, ": ", std::string(status.message())));
}

}  // namespace

StreamCall::StreamCall(CallContext* context, grpc::CallbackServerContext* grpc_context)
    : MatrixCall(context, grpc_context, kStreamMethod, Kind::kQuick),
      residents_(&context->engine->residents(), caller()),
      results_strand_(&context->decode_pool, Strand::Turn::kNext) {}

StreamCall::~StreamCall() = default;

// ---- Requests ----

void StreamCall::OnMessage(const grpc::ByteBuffer& message) {
  if (over_) return;
  if (const absl::Status status = Take(message); !status.ok()) Fail(status);
}

absl::Status StreamCall::Take(const grpc::ByteBuffer& message) {
  chunk_ = {};
  if (!message.Dump(&chunk_.slices).ok()) return absl::InternalError("unreadable message");
  std::vector<ByteSpan> pieces;
  pieces.reserve(chunk_.slices.size());
  for (const grpc::Slice& slice : chunk_.slices) pieces.push_back({slice.begin(), slice.size()});
  TCGEMM_ASSIGN_OR_RETURN(const StreamPart part, ParseStreamPart(pieces));
  if (part.header.has_value()) return Open(*part.header);
  TCGEMM_RETURN_IF_ERROR(CheckTurn(part));
  const bool is_b = part.b.has_value();
  StreamPanel const& panel = is_b ? *part.b : *part.a;
  TCGEMM_RETURN_IF_ERROR((is_b ? b_ : a_)->Take(panel));
  chunk_.panel = panel;
  chunk_.data = BytesOf(pieces, panel);
  chunk_.left = panel.bytes;
  if (is_b) return FillResident(job_residents_.b);
  return plan_.a_in_panels ? FillPanels() : FillResident(job_residents_.a);
}

absl::Status StreamCall::CheckTurn(const StreamPart& part) const {
  if (!part.a.has_value() && !part.b.has_value()) {
    return absl::InvalidArgumentError("a message has neither header nor panel");
  }
  if (stage_ == Stage::kHeader) {
    return absl::InvalidArgumentError("a panel came before the header");
  }
  const char* const name = part.b.has_value() ? "b" : "a";
  if (!(part.b.has_value() ? b_ : a_).has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a panel of ", name, " came, but header.", name, " names a resident matrix"));
  }
  if (part.a.has_value() && stage_ == Stage::kB) {
    return absl::InvalidArgumentError(
        absl::StrCat("a panel of a came after ", b_->Describe(), ": b comes first"));
  }
  return absl::OkStatus();
}

void StreamCall::OnRequestsEnd() {
  if (over_) return;
  if (stage_ == Stage::kHeader) {
    Fail(absl::InvalidArgumentError("the stream ended without a header"));
  } else if (stage_ != Stage::kEnd) {
    Fail(absl::InvalidArgumentError(
        absl::StrCat("the stream ended after ", (stage_ == Stage::kB ? b_ : a_)->Describe())));
  } else {
    requests_ended_ = true;
    RespondIfDone();
  }
}

// ---- The header ----

absl::Status StreamCall::Refuse(absl::Status status, RejectReason reason, Retry retry) {
  refusal_reason_ = reason;
  refusal_retry_ = retry;
  refusal_ = status;
  return status;
}

absl::Status StreamCall::Open(const RequestFields& header) {
  if (stage_ != Stage::kHeader) return absl::InvalidArgumentError("a second header");
  if (const absl::Status admitted = engine()->Admit(caller()); !admitted.ok()) {
    if (!absl::IsResourceExhausted(admitted)) return admitted;
    return Refuse(admitted, RejectReason::kQueue, Retry::kYes);
  }
  RequestFields fields = header;
  TCGEMM_RETURN_IF_ERROR(residents_.Find(fields));
  const StreamLimits limits = {.pitch_alignment = engine()->device_info().pitch_alignment,
                               .lease_bytes = context()->streams.bytes(),
                               .slab_bytes = engine()->slab_capacity()};
  absl::StatusOr<StreamPlan> plan = PlanStream(fields, limits);
  if (absl::IsResourceExhausted(plan.status())) {
    return Refuse(plan.status(), RejectReason::kMessage, Retry::kNo);
  }
  TCGEMM_RETURN_IF_ERROR(plan.status());
  plan_ = *std::move(plan);
  absl::StatusOr<StreamBudget::Share> share = context()->streams.Take(plan_.reserved_bytes());
  if (!share.ok()) return Refuse(share.status(), RejectReason::kMemory, Retry::kYes);
  share_ = *std::move(share);
  TCGEMM_RETURN_IF_ERROR(MakeResidents(fields));
  results_ = std::make_unique<StreamResults>(plan_);
  grpc::ByteBuffer first = Message(EncodeFirstHeader(plan_.layout.d));
  Write(first);
  Read();
  return EnterNextStage();
}

absl::Status StreamCall::MakeResidents(const RequestFields& header) {
  const RequestLayout& layout = plan_.layout;
  const bool keeps_a = plan_.a_is_streamed && !plan_.a_in_panels;
  const double needed = (plan_.b_is_streamed ? PaddedBytes(layout.b) : 0) +
                        (keeps_a ? PaddedBytes(layout.a) : 0) +
                        (layout.d_is_resident ? PaddedBytes(AsConst(layout.d)) : 0);
  const size_t budget = engine()->residents().pool().total_bytes();
  if (needed > static_cast<double>(budget)) {
    return Refuse(absl::ResourceExhaustedError(absl::StrCat(
                      "what stays on the server during the stream needs about ", needed,
                      " bytes (b, an a that is stored transposed, a d that goes to a handle), this "
                      "server keeps at most ",
                      budget, " resident (--resident-bytes)")),
                  RejectReason::kMemory, Retry::kNo);
  }
  job_residents_ = residents_.residents();
  if (plan_.b_is_streamed) {
    TCGEMM_ASSIGN_OR_RETURN(job_residents_.b, MakeTemporary("b", layout.b));
    plan_.PlaceB(job_residents_.b->view());
    b_.emplace("b", DenseBytes(layout.b));
  }
  if (keeps_a) {
    TCGEMM_ASSIGN_OR_RETURN(job_residents_.a, MakeTemporary("a", layout.a));
    plan_.PlaceA(job_residents_.a->view());
  }
  if (plan_.a_is_streamed) a_.emplace("a", DenseBytes(layout.a));
  const absl::Status made = residents_.MakeResult(header, plan_.layout);
  if (absl::IsResourceExhausted(made)) return Refuse(made, RejectReason::kMemory, Retry::kYes);
  job_residents_.d = residents_.residents().d;
  return made;
}

absl::StatusOr<ResidentRef> StreamCall::MakeTemporary(const std::string& name,
                                                      const MatrixView& view) {
  absl::StatusOr<ResidentRef> made = engine()->residents().CreateTemporary(
      caller(), {.rows = view.rows, .cols = view.cols, .dtype = view.dtype});
  if (made.ok()) return made;
  return Refuse(InField(name.c_str(), made.status()), RejectReason::kMemory, Retry::kYes);
}

// ---- Operands ----

void StreamCall::LimitPace(size_t bytes) {
  const auto units = static_cast<double>((bytes + kMaxPanelBytes - 1) / kMaxPanelBytes);
  const double limit = units * static_cast<double>(context()->options.receive_timeout.count());
  constexpr double kYear = 365.0 * 86400e9;
  LimitReadsUntil(limit > kYear
                      ? kInfiniteFuture
                      : After(context()->clock->Now(), Nanos(static_cast<int64_t>(limit))));
}

absl::Status StreamCall::EnterNextStage() {
  if (b_.has_value() && !b_->complete()) {
    stage_ = Stage::kB;
    LimitPace(DenseBytes(plan_.layout.b));
    return absl::OkStatus();
  }
  if (a_.has_value() && !a_->complete()) {
    stage_ = Stage::kA;
    // Of an A in panels, each panel has its own.
    plan_.a_in_panels ? LimitReadsUntil(kInfiniteFuture) : LimitPace(DenseBytes(plan_.layout.a));
    return absl::OkStatus();
  }
  stage_ = Stage::kEnd;
  LimitReadsUntil(kInfiniteFuture);
  received_at_ = context()->clock->Now();
  return plan_.a_in_panels ? absl::OkStatus() : SubmitReadyPanels();
}

absl::Status StreamCall::CheckChunk() {
  if (std::exchange(chunk_.checked, true)) return absl::OkStatus();
  return CheckCrc(operand_name(), chunk_.panel, chunk_.data);
}

absl::Status StreamCall::FillResident(const ResidentRef& resident) {
  Read();  // the next one comes while this one is copied
  const TimePoint start = context()->clock->Now();
  TCGEMM_RETURN_IF_ERROR(CheckChunk());
  TCGEMM_RETURN_IF_ERROR(
      engine()->transfers().Write(resident, static_cast<size_t>(chunk_.panel.offset), chunk_.data));
  chunk_ = {};
  decode_ += context()->clock->Now() - start;
  const bool complete = (stage_ == Stage::kB ? b_ : a_)->complete();
  return complete ? EnterNextStage() : absl::OkStatus();
}

absl::Status StreamCall::FillPanels() {
  while (chunk_.left > 0) {
    if (!open_.has_value() && !TryOpenPanel()) return absl::OkStatus();
    const bool fits = chunk_.left <= open_->bytes - open_->filled;
    if (fits && !std::exchange(chunk_.next_read, true)) Read();
    const TimePoint start = context()->clock->Now();
    TCGEMM_RETURN_IF_ERROR(CheckChunk());
    CopyToPanel();
    decode_ += context()->clock->Now() - start;
    if (open_->filled == open_->bytes) TCGEMM_RETURN_IF_ERROR(SubmitPanel());
  }
  chunk_ = {};
  return a_->complete() ? EnterNextStage() : absl::OkStatus();
}

void StreamCall::CopyToPanel() {
  const Rows rows = {
      .base = open_->lease.data(),
      .row_bytes = static_cast<size_t>(plan_.layout.a.cols) * DTypeSize(plan_.layout.a.dtype),
      .pitch = static_cast<size_t>(plan_.layout.a.ld) * DTypeSize(plan_.layout.a.dtype)};
  while (chunk_.left > 0 && open_->filled < open_->bytes) {
    const HostBytes piece = chunk_.data[chunk_.piece].subspan(chunk_.at);
    const size_t bytes = std::min(piece.size(), open_->bytes - open_->filled);
    CopyToRows(rows, open_->filled, piece.first(bytes));
    open_->filled += bytes;
    chunk_.left -= bytes;
    chunk_.at += bytes;
    if (bytes == piece.size()) {
      ++chunk_.piece;
      chunk_.at = 0;
    }
  }
}

// ---- Panels ----

absl::Status StreamCall::SubmitReadyPanels() {
  while (next_panel_ < plan_.panels && TryOpenPanel()) TCGEMM_RETURN_IF_ERROR(SubmitPanel());
  return absl::OkStatus();
}

bool StreamCall::TryOpenPanel() {
  if (held_ >= plan_.at_once) return false;
  const PanelLayout layout = LayoutOfPanel(plan_, next_panel_);
  if (layout.lease_bytes > 0 && !lease_ && !TryLease(layout.lease_bytes)) return false;
  ++held_;
  open_.emplace();
  open_->layout = layout;
  open_->lease = std::move(lease_);
  if (plan_.a_in_panels) {
    open_->bytes = static_cast<size_t>(layout.rows) * static_cast<size_t>(plan_.layout.a.cols) *
                   DTypeSize(plan_.layout.a.dtype);
    LimitPace(open_->bytes);
  }
  return true;
}

bool StreamCall::TryLease(size_t bytes) {
  if (awaits_lease_) return false;
  BufferPool& pool = engine()->host_pool();
  absl::StatusOr<Lease> lease = pool.TryLease(bytes);
  if (lease.ok()) {
    lease_ = *std::move(lease);
    return true;
  }
  awaits_lease_ = true;
  // On the thread that gave the piece back, which may be inside gRPC.
  const auto granted = [this, self = shared_from_this()](absl::StatusOr<Lease> piece) {
    auto shared = std::make_shared<absl::StatusOr<Lease>>(std::move(piece));
    Post([this, shared] {
      awaits_lease_ = false;
      lease_wait_ = 0;
      if (over_ || !shared->ok()) return;
      lease_ = std::move(**shared);
      Resume();
    });
  };
  const absl::StatusOr<BufferPool::WaitId> wait = pool.LeaseWhenFree(bytes, granted);
  // A piece that could never be leased is larger than a stream's share: no plan has it.
  if (!wait.ok()) Fail(absl::InternalError(wait.status().message()));
  lease_wait_ = wait.value_or(0);
  return false;
}

absl::Status StreamCall::SubmitPanel() {
  const int64_t index = next_panel_++;
  const PanelLayout layout = open_->layout;
  Job job;
  job.caller = caller();
  job.problem = ProblemOfPanel(plan_, layout, open_->lease.data());
  job.residents = job_residents_;
  job.memory = std::move(open_->lease);
  job.deadline = deadline();
  job.admitted = true;
  job.done = [this, self = shared_from_this(), index, layout](JobOutcome outcome) {
    auto shared = std::make_shared<JobOutcome>(std::move(outcome));
    results_strand_.Post(
        [this, self, index, layout, shared] { Emit(index, layout, std::move(*shared)); });
  };
  open_.reset();
  TCGEMM_ASSIGN_OR_RETURN(const JobId id, engine()->Submit(std::move(job)));
  jobs_.push_back(id);
  if (jobs_.size() > static_cast<size_t>(plan_.at_once)) jobs_.pop_front();
  return absl::OkStatus();
}

void StreamCall::Resume() {
  if (over_) return;
  absl::Status status;
  if (chunk_.left > 0) {
    status = FillPanels();
  } else if (stage_ == Stage::kEnd && !plan_.a_in_panels) {
    status = SubmitReadyPanels();
  }
  if (!status.ok()) Fail(status);
}

void StreamCall::Emit(int64_t index, const PanelLayout& layout, JobOutcome outcome) {
  if (!outcome.status.ok()) {
    End(outcome.status);
    return;
  }
  if (results_ == nullptr) return;  // the call has ended
  const auto on_gone = [this, self = shared_from_this()] {
    Post([this] {
      --held_;
      Resume();
    });
  };
  for (grpc::ByteBuffer& message : results_->Add(index, {layout, std::move(outcome), on_gone})) {
    Write(message);
  }
  if (!results_->complete()) return;
  Post([this] {
    all_left_ = true;
    RespondIfDone();
  });
}

// ---- The end ----

void StreamCall::RespondIfDone() {
  if (over_ || !all_left_ || !requests_ended_) return;
  StreamTimings timings = results_->timings();
  timings.receive = received_at_ - started_at();
  timings.decode = decode_;
  const GemmShape shape = {
      .m = plan_.layout.d.rows, .n = plan_.layout.d.cols, .k = plan_.layout.a.op_cols()};
  const DType output = plan_.layout.d.dtype;
  grpc::ByteBuffer last =
      Message(EncodeLastHeader(shape, output, timings, residents_.CompleteResult()));
  // Before the client hears of the end and may want the room.
  job_residents_ = {};
  residents_.Release();
  share_.Reset();
  Respond(last);
}

void StreamCall::Fail(const absl::Status& status) {
  if (refusal_.has_value()) {
    End(status, refusal_retry_, refusal_reason_);
  } else if (absl::IsResourceExhausted(status)) {
    End(status, Retry::kNo, RejectReason::kMessage);
  } else {
    End(status);
  }
}

void StreamCall::OnEnd() {
  over_ = true;
  if (lease_wait_ != 0 && engine()->host_pool().CancelWait(lease_wait_)) awaits_lease_ = false;
  for (const JobId id : jobs_) {
    engine()->Cancel(id, absl::CancelledError("the stream ended"));
  }
  // What was computed out of turn, and would keep this call.
  results_strand_.Post([this, self = shared_from_this()] { results_.reset(); });
  chunk_ = {};
  open_.reset();
  lease_.Reset();
  job_residents_ = {};
  residents_.DropResult();
  residents_.Release();
  share_.Reset();
}

}  // namespace tcgemm
