#include "kernels/gpu_plan.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tcgemm {
namespace {

// A block before its first product and after its last: barriers, first loads, epilogue. In steps of
// K = 64 of a 128x128 tile, which take about 0.4 µs on an H200 with two blocks at once.
constexpr double kBlockOverheadSteps = 4;
constexpr int kSharedReservedPerBlock = 1024;

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

absl::Status CheckInt32(const char* what, int64_t value) {
  if (value <= std::numeric_limits<int32_t>::max()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(what, " is ", value, "; the limit on a GPU is 2147483647"));
}

int BlocksAtOnce(const PlanLimits& limits, const GpuTile& tile) {
  const size_t needed = tile.shared_bytes() + kSharedReservedPerBlock;
  const auto by_memory = static_cast<int>(limits.shared_bytes_per_multiprocessor / needed);
  return std::max(1, std::min(by_memory, tile.blocks_by_registers()));
}

// Relative time of the launch: waves of blocks, each as long as its own products and overhead.
double Cost(const PlanLimits& limits, const GpuTileEntry& entry,
            absl::Span<const GemmProblem> problems) {
  double steps = 0;  // of K, over all blocks
  double blocks = 0;
  for (const GemmProblem& problem : problems) {
    const auto tiles = static_cast<double>(TileCount(problem.shape(), entry.tile));
    blocks += tiles;
    steps += tiles * static_cast<double>(CeilDiv(problem.shape().k, entry.tile.k));
  }
  if (blocks == 0) return 0;
  const double at_once =
      static_cast<double>(limits.multiprocessors) * BlocksAtOnce(limits, entry.tile);
  const double waves = std::ceil(blocks / at_once);
  const double work_of_step = entry.tile.m * entry.tile.n * (entry.tile.k / 64.0) / (128.0 * 128.0);
  const double block_time = steps / blocks * work_of_step / entry.efficiency + kBlockOverheadSteps;
  // A lone block on a multiprocessor has all of it.
  const double sharing = std::min<double>(BlocksAtOnce(limits, entry.tile),
                                          std::max(1.0, blocks / limits.multiprocessors));
  return waves * block_time * sharing;
}

}  // namespace

int64_t TileCount(const GemmShape& shape, const GpuTile& tile) {
  return CeilDiv(shape.m, tile.m) * CeilDiv(shape.n, tile.n);
}

std::vector<GpuTileEntry> UsableTiles(const PlanLimits& limits, KernelId kernel, bool grouped) {
  std::vector<GpuTileEntry> usable;
  for (const GpuTileEntry& entry : kGpuTiles) {
    const bool chip = (entry.compute_capability == 120) == (limits.compute_capability >= 120);
    // TMA is sm_90's; cp.async is there from sm_80 on.
    const bool kernel_fits = kernel != KernelId::kTmaMma || limits.compute_capability >= 90;
    const bool memory_fits = entry.tile.shared_bytes() <= limits.shared_bytes_per_block;
    if (chip && kernel_fits && memory_fits && (entry.grouped || !grouped)) usable.push_back(entry);
  }
  return usable;
}

absl::StatusOr<Plan> ChooseGpuPlan(const PlanLimits& limits,
                                   absl::Span<const GemmProblem> problems) {
  const KernelId kernel = limits.kernels[0];
  for (const GemmProblem& problem : problems) {
    TCGEMM_RETURN_IF_ERROR(CheckInt32("m", problem.shape().m));
    TCGEMM_RETURN_IF_ERROR(CheckInt32("n", problem.shape().n));
    TCGEMM_RETURN_IF_ERROR(CheckInt32("k", problem.shape().k));
  }
  std::vector<GpuTileEntry> tiles = UsableTiles(limits, kernel, problems.size() > 1);
  if (kernel == KernelId::kSimt) tiles = {{.tile = kSimtTile, .grouped = true, .efficiency = 1}};
  if (tiles.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat(std::string(KernelName(kernel)), " has no tile that fits this GPU's ",
                     limits.shared_bytes_per_block, " bytes of shared memory a block"));
  }
  const GpuTileEntry& best =
      *std::min_element(tiles.begin(), tiles.end(), [&](const auto& x, const auto& y) {
        return Cost(limits, x, problems) < Cost(limits, y, problems);
      });
  int64_t count = 0;
  for (const GemmProblem& problem : problems) count += TileCount(problem.shape(), best.tile);
  TCGEMM_RETURN_IF_ERROR(CheckInt32("the number of tiles", count));
  return Plan{.kernel = kernel,
              .problems = static_cast<int>(problems.size()),
              .tile = best.tile,
              .tiles = static_cast<int>(count)};
}

}  // namespace tcgemm
