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
  bool in_place = false;           // besides, the kernel that takes unaligned operands as they are
  bool fastest = false;            // besides, the plan that may split K
  double sustained_seconds = 0.4;  // of each arm, in alternating bursts; ≥ 0.3
  int bursts = 8;
  int rested_rounds = 3;  // each: 0.25 s pause, then up to 8 launches
  // Says what the clocks are; called once per cell while the chip is hot.
  std::function<std::string()> read_clocks;
};

// Checks every arm against cuBLASLt's fp32 product first; DATA_LOSS, naming the arm, when one is
// wrong. Medians over bursts and rounds. With M ≤ 64 the read probe takes its turns, too.
absl::StatusOr<CellResult> MeasureCell(Device& device, const Cell& cell,
                                       const MeasureOptions& options);

}  // namespace tcgemm::bench

#endif  // TCGEMM_BENCH_KERNEL_MEASURE_H_
