// How the product of one MatmulStream call is cut into panels of rows of D: arithmetic alone.
//
// A row of D depends on its row of op(A), on op(B) and on the types alone, so that the cut changes
// no bit. An A that is streamed as it is used arrives row after row: a panel's rows go into the
// panel's lease. Any other operand is resident when the first panel is computed.
#ifndef TCGEMM_SERVER_RPC_STREAM_PLAN_H_
#define TCGEMM_SERVER_RPC_STREAM_PLAN_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/gemm.h"
#include "server/rpc/matmul_wire.h"

namespace tcgemm {

struct StreamLimits {
  int64_t pitch_alignment = 1;  // as ValidateRequest's
  size_t lease_bytes = 0;       // of all panels of one stream together
  size_t slab_bytes = 0;        // of one panel on the device (Engine::slab_capacity)
};

struct StreamPlan {
  // Panels at once: one is received, one computed, one sent, and one more so that none of them
  // waits for another.
  static constexpr int kPanelsAtOnce = 4;
  // What a panel aims at. Smaller ones cost launches, larger ones time before the first byte of D
  // and after the last one of A (docs/adr/0013).
  static constexpr size_t kPanelBytes = size_t{4} << 20;
  // But so many rows, where that takes no more than this: the kernel reads B once for each panel.
  static constexpr int64_t kPanelRows = 128;
  static constexpr size_t kMaxPanelBytes = size_t{32} << 20;

  // Of the whole product. Streamed operands lie nowhere yet; one that is resident while the call
  // lives gets its place by PlaceA and PlaceB, and D by RequestResidents.
  RequestLayout layout;
  bool a_is_streamed = false;
  bool b_is_streamed = false;
  bool a_in_panels = false;  // its rows arrive as they are used
  int64_t panel_rows = 0;
  int64_t panels = 0;
  int at_once = 0;
  size_t panel_lease_bytes = 0;  // the most that one takes; 0: nothing travels

  void PlaceA(const MatrixView& resident);
  void PlaceB(const MatrixView& resident);
  size_t reserved_bytes() const { return panel_lease_bytes * static_cast<size_t>(at_once); }
};

// `fields` is a stream's header whose handles RequestResidents has found. INVALID_ARGUMENT and
// UNIMPLEMENTED as ValidateRequest, also for an operand with inline bytes, for a C or a bias that
// is not resident, and for a streamed one with gaps between its rows; RESOURCE_EXHAUSTED when not
// even one row fits the limits.
absl::StatusOr<StreamPlan> PlanStream(RequestFields fields, const StreamLimits& limits);

// One panel.
struct PanelLayout {
  int64_t first_row = 0;  // of D
  int64_t rows = 0;
  size_t d_offset = 0;  // in the lease; A's rows are at 0
  size_t lease_bytes = 0;
};
PanelLayout LayoutOfPanel(const StreamPlan& plan, int64_t index);
// `lease` may be null when it has no bytes.
GemmProblem ProblemOfPanel(const StreamPlan& plan, const PanelLayout& panel, std::byte* lease);

}  // namespace tcgemm

#endif  // TCGEMM_SERVER_RPC_STREAM_PLAN_H_
