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

// Times below are in units of one K step of 64 of a 128x128 tile at the full rate of a
// multiprocessor: 0.62 µs on an H200, whose mma.sync kernels reach about 430 TFLOPS. Fitted to the
// tiles' times at 1024³ … 8192³ there (docs/KERNELS.md, "The plan").
//
// A block before its first product and after its last: launch, barriers, first loads, epilogue.
constexpr double kBlockOverhead = 4;
// A block alone on its multiprocessor waits for its own loads and instructions: it takes this share
// of the time of a step that it takes among as many blocks as fit.
constexpr double kLatencyShare = 0.6;
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
  const int most = BlocksAtOnce(limits, entry.tile);
  const double resident = std::clamp(blocks / limits.multiprocessors, 1.0, double{1} * most);
  const double waves = std::ceil(blocks / (double{1} * most * limits.multiprocessors));
  const double work = entry.tile.m * entry.tile.n * (entry.tile.k / 64.0) / (128.0 * 128.0);
  const double crowd = kLatencyShare + (1 - kLatencyShare) * resident / most;
  const double step_time = work * most * crowd / entry.efficiency;
  return waves * (steps / blocks * step_time + kBlockOverhead);
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
