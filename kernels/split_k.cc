#include "kernels/split_k.h"

#include <algorithm>
#include <limits>

#include "kernels/gpu_plan.h"
#include "matrix/dtype.h"

namespace tcgemm {
namespace {

// In the units of gpu_plan.cc, 0.62 µs: the second launch, and the sums on their way to the L2
// cache and back.
constexpr double kReduceOverhead = 4;
constexpr double kReduceBytesOfUnit = 6e12 * 0.62e-6;

// Columns [first, first + count) of op(A), or rows of op(B).
MatrixView Columns(MatrixView view, bool along_rows, int64_t first, int64_t count) {
  // Stored along K the columns are neighbours; stored across it they are rows.
  const int64_t offset = along_rows ? first : first * view.ld;
  (along_rows ? view.cols : view.rows) = count;
  // Planned without memory, too.
  if (view.data != nullptr) {
    view.data = static_cast<const std::byte*>(view.data) +
                offset * static_cast<int64_t>(DTypeSize(view.dtype));
  }
  return view;
}

}  // namespace

int64_t SplitLd(int64_t n) { return (n + 31) / 32 * 32; }

size_t SplitWorkspaceBytes(const GemmShape& shape, int splits) {
  // Below 2^62: dimensions are below 2^31.
  const auto elements = static_cast<size_t>(shape.m * SplitLd(shape.n));
  constexpr size_t kMost = std::numeric_limits<size_t>::max();
  if (elements > kMost / sizeof(float) / kMaxSplits) return kMost;
  return static_cast<size_t>(splits) * elements * sizeof(float);
}

SplitParts::SplitParts(const GemmProblem& problem, int splits, std::byte* workspace)
    : count_(static_cast<size_t>(splits)) {
  const GemmShape shape = problem.shape();
  const int64_t steps = (shape.k + kSplitStep - 1) / kSplitStep;
  const size_t part_bytes = SplitWorkspaceBytes(shape, 1);
  for (int64_t i = 0; i < splits; ++i) {
    const int64_t first = i * steps / splits * kSplitStep;
    const int64_t end = i + 1 == splits ? shape.k : (i + 1) * steps / splits * kSplitStep;
    GemmProblem& part = parts_[i];
    part.a = Columns(problem.a, !problem.a.transposed, first, end - first);
    part.b = Columns(problem.b, problem.b.transposed, first, end - first);
    part.d = {workspace == nullptr ? nullptr : workspace + i * part_bytes,
              shape.m,
              shape.n,
              SplitLd(shape.n),
              DType::kFp32,
              false};
  }
}

namespace {

double CostOf(const PlanLimits& limits, const GemmProblem& problem, const Plan& plan) {
  for (const GpuTileEntry& entry : UsableTiles(limits, plan.kernel, false)) {
    if (entry.tile == plan.tile) return PlanCost(limits, plan.kernel, entry, {&problem, 1});
  }
  return std::numeric_limits<double>::infinity();
}

}  // namespace

Plan SplitWhereFaster(const PlanLimits& limits, const GemmProblem& problem, const Plan& whole) {
  constexpr KernelId kKernel = KernelId::kTmaWgmma;
  const GemmShape shape = problem.shape();
  if (problem.workspace.bytes == 0 || whole.tiles == 0 || problem.summed_k() == 0 ||
      std::count(limits.kernels.begin(), limits.kernels.end(), kKernel) == 0) {
    return whole;
  }
  const auto most =
      static_cast<int>(std::min<int64_t>(kMaxSplits, (shape.k + kSplitStep - 1) / kSplitStep));
  const double sum_bytes = 4.0 * static_cast<double>(shape.m) * static_cast<double>(shape.n);
  Plan best = whole;
  double best_cost = CostOf(limits, problem, whole);
  for (const GpuTileEntry& entry : UsableTiles(limits, kKernel, true)) {
    if (entry.tile.swapped) continue;
    for (int splits = 2; splits <= most; ++splits) {
      if (SplitWorkspaceBytes(shape, splits) > problem.workspace.bytes) break;
      const SplitParts parts(problem, splits, nullptr);
      const double cost = PlanCost(limits, kKernel, entry, parts.problems()) + kReduceOverhead +
                          2 * splits * sum_bytes / kReduceBytesOfUnit;
      if (cost >= best_cost) continue;
      best_cost = cost;
      best = {.kernel = kKernel,
              .problems = 1,
              .tile = entry.tile,
              .origin = PlanOrigin::kModel,
              .splits = splits};
      best.tiles = PlanOfParts(best, parts.problems()).tiles;
    }
  }
  return best;
}

Plan PlanOfParts(const Plan& plan, absl::Span<const GemmProblem> parts) {
  Plan launch = plan;
  launch.splits = 1;
  launch.problems = static_cast<int>(parts.size());
  launch.tiles = 0;
  for (const GemmProblem& part : parts) {
    launch.tiles += static_cast<int>(TileCount(part.shape(), plan.tile));
  }
  return launch;
}

}  // namespace tcgemm
