#include "server/rpc/stream_plan.h"

#include <algorithm>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tcgemm {
namespace {

using Source = OperandFields::Source;

// Where a panel of a transposed A starts: TMA wants 16 bytes.
constexpr int64_t kColumnUnit = 8;
// The height of a Tensor Core tile.
constexpr int64_t kTileRows = 64;
constexpr size_t kMatrixAlignment = 256;

size_t RoundUp(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }

absl::Status Unbuilt(const std::string& what) {
  return absl::UnimplementedError(what + " is not built for streams: use Matmul");
}

// C and the bias are on the server before the first panel is computed: a header holds no matrix.
absl::Status CheckAddendSource(const std::string& name, const OperandFields& operand) {
  if (operand.source == Source::kRegion) return Unbuilt(name + ".region");
  if (!operand.present || operand.source == Source::kHandle) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      name,
      " has no handle: in a stream it must be a resident matrix (UploadMatrix), or left out"));
}

absl::Status CheckOthers(const RequestFields& fields) {
  if (fields.output.target == OutputFields::Target::kRegion) return Unbuilt("output.region");
  TCGEMM_RETURN_IF_ERROR(CheckAddendSource("c", fields.c));
  return CheckAddendSource("bias", fields.bias);
}

// A source that a stream's header may have, and what it means here.
absl::Status SetStreamed(const std::string& name, OperandFields& operand) {
  if (operand.source == Source::kInline) {
    return absl::InvalidArgumentError(absl::StrCat(
        name, ".inline is set: the header of a stream holds no matrix, its bytes come in panels"));
  }
  if (operand.source == Source::kRegion) return Unbuilt(name + ".region");
  if (operand.source != Source::kNone) return absl::OkStatus();
  operand.source = Source::kStreamed;
  if (operand.ld == 0 || operand.ld == operand.cols) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, ".ld is ", operand.ld, ", must be 0 or cols = ", operand.cols,
                   " in a stream: rows are sent without what lies between them"));
}

// Bytes of one row, where they are not resident.
struct RowBytes {
  size_t a = 0;
  size_t d = 0;
  size_t d_on_device = 0;

  size_t in_lease() const { return a + d; }
  size_t in_slab() const { return a + d_on_device; }
};

RowBytes RowBytesOf(const StreamPlan& plan, int64_t pitch_alignment) {
  RowBytes bytes;
  const RequestLayout& layout = plan.layout;
  if (plan.a_in_panels) bytes.a = static_cast<size_t>(layout.a.ld) * DTypeSize(layout.a.dtype);
  if (!layout.d_is_resident) {
    const auto cols = static_cast<size_t>(layout.d.cols);
    bytes.d = cols * DTypeSize(layout.d.dtype);
    bytes.d_on_device =
        RoundUp(cols, static_cast<size_t>(pitch_alignment)) * DTypeSize(layout.d.dtype);
  }
  return bytes;
}

// The most rows whose panel fits, with room for what aligns A and D.
int64_t RowsThatFit(const RowBytes& row, size_t lease_bytes, size_t slab_bytes) {
  constexpr size_t kSlack = 2 * kMatrixAlignment;
  const auto rows = [](size_t bytes, size_t of_row) {
    if (of_row == 0) return std::numeric_limits<int64_t>::max();
    return static_cast<int64_t>(std::min<size_t>(bytes < kSlack ? 0 : (bytes - kSlack) / of_row,
                                                 std::numeric_limits<int32_t>::max()));
  };
  return std::min(rows(lease_bytes, row.in_lease()), rows(slab_bytes, row.in_slab()));
}

absl::Status TooLarge(const StreamPlan& plan, const RowBytes& row, int64_t rows,
                      const StreamLimits& limits) {
  return absl::ResourceExhaustedError(
      absl::StrCat("a panel of ", rows, " rows of ", plan.layout.d.rows, "x", plan.layout.d.cols,
                   " needs ", static_cast<size_t>(rows) * row.in_lease(),
                   " bytes, a stream may have ", limits.lease_bytes, " (half of --pinned-bytes)",
                   limits.slab_bytes < limits.lease_bytes
                       ? absl::StrCat(" and ", limits.slab_bytes, " on the device (--device-bytes)")
                       : ""));
}

absl::Status CutRows(StreamPlan& plan, const StreamLimits& limits) {
  const int64_t m = plan.layout.d.rows;
  const RowBytes row = RowBytesOf(plan, limits.pitch_alignment);
  const int64_t unit = plan.layout.a.transposed ? std::min(m, kColumnUnit) : 1;
  const size_t share = limits.lease_bytes / StreamPlan::kPanelsAtOnce;
  const auto rows_of = [&](size_t bytes) {
    return RowsThatFit(row, std::min(bytes, share), limits.slab_bytes);
  };
  int64_t rows = rows_of(StreamPlan::kPanelBytes);
  if (rows < StreamPlan::kPanelRows) {
    rows = std::min(StreamPlan::kPanelRows, rows_of(StreamPlan::kMaxPanelBytes));
  }
  if (rows >= kTileRows) rows = rows / kTileRows * kTileRows;
  // Fewer panels at once rather than none.
  rows = std::min(m, std::max(rows / unit * unit, unit));
  if (rows > RowsThatFit(row, limits.lease_bytes, limits.slab_bytes)) {
    return TooLarge(plan, row, rows, limits);
  }
  plan.panel_rows = rows;
  plan.panels = (m + rows - 1) / rows;
  plan.panel_lease_bytes = LayoutOfPanel(plan, 0).lease_bytes;
  plan.at_once = StreamPlan::kPanelsAtOnce;
  if (plan.panel_lease_bytes > 0) {
    plan.at_once = static_cast<int>(std::clamp<size_t>(limits.lease_bytes / plan.panel_lease_bytes,
                                                       1, StreamPlan::kPanelsAtOnce));
  }
  plan.at_once = static_cast<int>(std::min<int64_t>(plan.at_once, plan.panels));
  return absl::OkStatus();
}

// Keeps what the request says about the view, op() above all.
void Place(MatrixView& view, const MatrixView& resident) {
  view.data = resident.data;
  view.ld = resident.ld;
}

const std::byte* At(const void* data, size_t offset) {
  return static_cast<const std::byte*>(data) + offset;
}

}  // namespace

void StreamPlan::PlaceA(const MatrixView& resident) { Place(layout.a, resident); }

void StreamPlan::PlaceB(const MatrixView& resident) { Place(layout.b, resident); }

absl::StatusOr<StreamPlan> PlanStream(RequestFields fields, const StreamLimits& limits) {
  TCGEMM_RETURN_IF_ERROR(CheckOthers(fields));
  TCGEMM_RETURN_IF_ERROR(SetStreamed("a", fields.a));
  TCGEMM_RETURN_IF_ERROR(SetStreamed("b", fields.b));
  StreamPlan plan;
  // The whole product is not what must fit anywhere.
  TCGEMM_ASSIGN_OR_RETURN(plan.layout, ValidateRequest(fields, limits.pitch_alignment,
                                                       std::numeric_limits<size_t>::max()));
  plan.a_is_streamed = fields.a.source == Source::kStreamed;
  plan.b_is_streamed = fields.b.source == Source::kStreamed;
  plan.a_in_panels = plan.a_is_streamed && !fields.a.transposed;
  TCGEMM_RETURN_IF_ERROR(CutRows(plan, limits));
  return plan;
}

PanelLayout LayoutOfPanel(const StreamPlan& plan, int64_t index) {
  PanelLayout panel;
  panel.first_row = index * plan.panel_rows;
  panel.rows = std::min(plan.panel_rows, plan.layout.d.rows - panel.first_row);
  // Rows of A are as far apart on the host as on the device; those of D are dense, as they leave.
  const RowBytes row = RowBytesOf(plan, /*pitch_alignment=*/1);
  const auto rows = static_cast<size_t>(panel.rows);
  panel.d_offset = RoundUp(rows * row.a, kMatrixAlignment);
  panel.lease_bytes = panel.d_offset + rows * row.d;
  return panel;
}

GemmProblem ProblemOfPanel(const StreamPlan& plan, const PanelLayout& panel, std::byte* lease) {
  const RequestLayout& layout = plan.layout;
  GemmProblem problem;
  problem.a = layout.a;
  problem.b = layout.b;
  problem.d = layout.d;
  const auto first = static_cast<size_t>(panel.first_row);
  (layout.a.transposed ? problem.a.cols : problem.a.rows) = panel.rows;
  if (plan.a_in_panels) {
    problem.a.data = lease;
  } else {
    const size_t step = layout.a.transposed ? 1 : static_cast<size_t>(layout.a.ld);
    problem.a.data = At(layout.a.data, first * step * DTypeSize(layout.a.dtype));
  }
  problem.epilogue = EpilogueOfRows(layout.epilogue.steps, {.m = layout.d.rows, .n = layout.d.cols},
                                    panel.first_row, panel.rows);
  problem.d.rows = panel.rows;
  if (layout.d_is_resident) {
    const size_t step = static_cast<size_t>(layout.d.ld) * DTypeSize(layout.d.dtype);
    problem.d.data = static_cast<std::byte*>(layout.d.data) + first * step;
  } else {
    problem.d.data = lease + panel.d_offset;
  }
  return problem;
}

}  // namespace tcgemm
