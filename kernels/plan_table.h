// Plans that were measured: the fastest tile of a product on one kind of chip, where the cost model
// of gpu_plan.cc takes another one. Data, written by kernel_bench --write-table into
// plan_table.inc.
//
// The rule: a row counts for exactly its M, N, K, layout and output type, alone in its launch; for
// everything between the rows the model decides. Nearer shapes are not guessed at: a tile's time
// jumps where one more wave or one more row of tiles begins, which the model knows and a
// neighbour does not. The table is for the chip that it was measured on (compute capability and
// number of multiprocessors), and for the tiles of the build that measured it: when those change,
// it is out of date and not used until it is measured again. Bits do not depend on it.
#ifndef TCGEMM_KERNELS_PLAN_TABLE_H_
#define TCGEMM_KERNELS_PLAN_TABLE_H_

#include <cstdint>

#include "absl/types/span.h"
#include "kernels/gemm.h"
#include "kernels/plan.h"

namespace tcgemm {

struct PlanTableRow {
  GemmShape shape;
  bool a_transposed = false;
  bool b_transposed = false;
  DType output = DType::kBf16;
  KernelId kernel = KernelId::kTmaWgmma;
  GpuTile tile;
};

struct PlanTable {
  const char* chip = "";  // for people: DeviceInfo::description
  const char* date = "";  // of the measurement, 2026-11-30
  int compute_capability = 0;
  int multiprocessors = 0;
  uint64_t tiles = 0;  // TilesFingerprint() of the build that measured
  absl::Span<const PlanTableRow> rows;
};

// Of plan_table.inc.
const PlanTable& MeasuredPlanTable();

// Of everything in kGpuTiles and kWgmmaTiles that a kernel is compiled from.
uint64_t TilesFingerprint();

// Whether the table is of this chip and of this build's tiles.
bool PlanTableApplies(const PlanTable& table, const PlanLimits& limits);

// The problem's row; null without one, when the table does not apply, or when `limits` leave out
// the row's kernel or its tile does not fit the chip. Allocates nothing that outlives it.
const PlanTableRow* FindPlanTableRow(const PlanTable& table, const PlanLimits& limits,
                                     const GemmProblem& problem);

}  // namespace tcgemm

#endif  // TCGEMM_KERNELS_PLAN_TABLE_H_
