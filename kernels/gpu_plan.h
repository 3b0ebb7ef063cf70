// Which tile a GPU kernel uses. ChoosePlan's half for GPUs; call that instead.
#ifndef TCGEMM_KERNELS_GPU_PLAN_H_
#define TCGEMM_KERNELS_GPU_PLAN_H_

#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/plan.h"

namespace tcgemm {

// What a Tensor Core kernel is compiled for, on any chip, and the shared memory that it takes.
absl::Span<const GpuTileEntry> TilesOf(KernelId kernel);
size_t SharedBytes(KernelId kernel, const GpuTile& tile);

// The tiles that this chip can run with the kernel, grouped ones only when `grouped`.
std::vector<GpuTileEntry> UsableTiles(const PlanLimits& limits, KernelId kernel, bool grouped);

// Problems that one launch of the kernel takes; limits.max_problems is the most of any.
int MaxProblems(KernelId kernel);

// What the model says of a launch over `problems`, in its own unit: for comparisons.
double PlanCost(const PlanLimits& limits, KernelId kernel, const GpuTileEntry& entry,
                absl::Span<const GemmProblem> problems);

struct PlanTable;

// A problem alone takes what `table` says of it, if it says something; all else the cost model's.
// limits.kernels is not empty and its first is a GPU kernel; `problems` has 1 … max_problems.
// INVALID_ARGUMENT for a dimension or a number of tiles beyond int32; FAILED_PRECONDITION when no
// tile fits the chip.
absl::StatusOr<Plan> ChooseGpuPlan(const PlanLimits& limits, absl::Span<const GemmProblem> problems,
                                   const PlanTable& table);

}  // namespace tcgemm

#endif  // TCGEMM_KERNELS_GPU_PLAN_H_
