#include "server/rpc/stream_call.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tcgemm {
namespace {

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
  if (stage_ != Stage::kEnd) {
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
  record().NoteShape({.m = plan_.layout.a.op_rows(),
                      .n = plan_.layout.b.op_cols(),
                      .k = plan_.layout.a.op_cols()});
  if (const std::optional<Refusal> refusal = record().TakeBytes(plan_.reserved_bytes())) {
    return Refuse(refusal->status, *refusal->reason, refusal->may_retry ? Retry::kYes : Retry::kNo);
  }
  absl::StatusOr<PeerSlots::Slot> slot = context()->stream_slots.Take(peer());
  if (!slot.ok()) return Refuse(slot.status(), RejectReason::kInflight, Retry::kYes);
  slot_ = *std::move(slot);
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
  ResidentStore& store = engine()->residents();
  const size_t share = store.bytes_per_caller();
  const bool shared = share > 0;
  const size_t budget =
      shared ? std::min(share, store.pool().total_bytes()) : store.pool().total_bytes();
  if (needed > static_cast<double>(budget)) {
    return Refuse(absl::ResourceExhaustedError(absl::StrCat(
                      "what stays on the server during the stream needs about ", needed,
                      " bytes (b, an a that is stored transposed, a d that goes to a handle), this "
                      "server keeps at most ",
                      budget, " resident (--resident-bytes)",
                      shared ? " of one caller (--resident-bytes-per-caller)" : "")),
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

// ---- The end ----

void StreamCall::RespondIfDone() {
  // What gRPC still holds of D is this stream's part of the pool until it is back.
  if (over_ || !all_left_ || !requests_ended_ || held_ > 0) return;
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
  slot_.Reset();
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
  slot_.Reset();
}

}  // namespace tcgemm
