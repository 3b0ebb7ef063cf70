// How a MatmulStream call takes operands in, and cuts them into panels for the engine.
#include <algorithm>
#include <cstring>
#include <utility>

#include "base/status_macros.h"
#include "base/stream_copy.h"
#include "server/rpc/call_deadline.h"
#include "server/rpc/stream_call.h"

namespace tcgemm {
namespace {

// Shorter pieces are copied through the caches (ADR 10).
constexpr size_t kStreamPieceBytes = 2048;

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

}  // namespace

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
    LimitPace(b_->bytes());
    return absl::OkStatus();
  }
  if (a_.has_value() && !a_->complete()) {
    stage_ = Stage::kA;
    // Of an A in panels, each panel has its own.
    plan_.a_in_panels ? LimitReadsUntil(kInfiniteFuture) : LimitPace(a_->bytes());
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
  open_ = OpenPanel{};
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
  // gRPC may hold a panel for longer than the call lives, and this object holds gRPC's call.
  const auto on_gone = [this, weak = weak_from_this(),
                        hold = std::make_shared<LiveHold>(&context()->live)] {
    const auto self = weak.lock();
    if (self == nullptr) return;
    Post([this] {
      --held_;
      Resume();
      RespondIfDone();
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

}  // namespace tcgemm
