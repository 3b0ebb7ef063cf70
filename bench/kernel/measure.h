// Times arms against each other so that none gets the cool chip.
#ifndef TCGEMM_BENCH_KERNEL_MEASURE_H_
#define TCGEMM_BENCH_KERNEL_MEASURE_H_

#include <functional>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/kernel/arm.h"
#include "bench/kernel/cell.h"

namespace tcgemm::bench {

struct MeasureOptions {
  std::vector<KernelId> kernels;
  bool all_tiles = false;          // each tile of the Tensor Core kernels instead of ChoosePlan's
  double sustained_seconds = 0.4;  // of each arm, in alternating bursts; ≥ 0.3
  int bursts = 8;
  int rested_rounds = 3;  // each: 0.25 s pause, then up to 8 launches
  // Says what the clocks are; called once per cell while the chip is hot.
  std::function<std::string()> read_clocks;
};

// Checks every arm against cuBLASLt's fp32 product first; DATA_LOSS, naming the arm, when one is
// wrong. Medians over bursts and rounds.
absl::StatusOr<CellResult> MeasureCell(Device& device, const Cell& cell,
                                       const MeasureOptions& options);

struct BatchResult {
  int problems = 0;
  Cell cell;
  std::string kernel;
  double together_seconds = 0;    // one launch of all
  double one_by_one_seconds = 0;  // as many launches of one, back to back
};
// ChoosePlan's kernel; the median of `rounds`, alternating.
absl::StatusOr<BatchResult> MeasureBatch(Device& device, const Cell& cell, int problems,
                                         int rounds);

}  // namespace tcgemm::bench

#endif  // TCGEMM_BENCH_KERNEL_MEASURE_H_
