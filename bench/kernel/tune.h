// Every tile of every shape, best first, and the plan table that follows.
#ifndef TCGEMM_BENCH_KERNEL_TUNE_H_
#define TCGEMM_BENCH_KERNEL_TUNE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/kernel/cell.h"

namespace tcgemm::bench {

struct TunedCell {
  Cell cell;
  double cublaslt_seconds = 0;
  std::vector<ArmResult> ranked;  // ours by sustained time, the fastest first
  size_t model = 0;               // which of them the cost model takes
};

// Of cells that were measured with all_tiles. INTERNAL when the model takes a tile that was not
// measured.
absl::StatusOr<std::vector<TunedCell>> Rank(const PlanLimits& limits,
                                            const std::vector<CellResult>& cells);

// A line for each tile of each cell.
std::string TuneTable(const std::vector<TunedCell>& cells);
std::string TuneCsv(const std::vector<TunedCell>& cells);

struct TableSource {
  std::string chip;  // DeviceInfo::description
  std::string date;  // 2026-11-30
};
// kernels/plan_table.inc: a row for each cell whose fastest tile takes at least 2 % less time than
// the model's; where it does not, the difference may be chance and the model is as good. Epilogues
// have no rows of their own: cells that accumulate are left out.
std::string PlanTableText(const PlanLimits& limits, const std::vector<TunedCell>& cells,
                          const TableSource& source);

}  // namespace tcgemm::bench

#endif  // TCGEMM_BENCH_KERNEL_TUNE_H_
