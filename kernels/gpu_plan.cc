#include "kernels/gpu_plan.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/ceil_div.h"
#include "base/status_macros.h"
#include "kernels/gpu_problem.h"
#include "kernels/plan_table.h"
#include "kernels/split_k.h"
#include "kernels/tensor_map.h"

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
// tma_wgmma's blocks start once, and find each other in a cluster.
constexpr double kWalkOverhead = 3;
constexpr double kClusterOverhead = 0.8;  // and again for twice as many
constexpr double kCpAsyncCost = 1.25;
// Few rows: a step (of 128) waits for its loads, which without slabs are twice as many. All loads
// together wait for memory, 3.9 TB/s, or for the L2 cache, 11.5 TB/s, and a fifth of what is loaded
// more than once is hidden behind neither.
constexpr double kSwappedStep = 0.176;
constexpr double kSwappedStepOfRow = 0.00275;
constexpr double kSwappedWayOutOfRow = 0.004;
constexpr double kStepWithoutSlabs = 1.9;
constexpr double kSwappedOverhead = 5;
constexpr double kBytesOfUnit = 3.9e12 * 0.62e-6;
constexpr double kCachedBytesOfUnit = 11.5e12 * 0.62e-6;
constexpr double kLoadedAgain = 0.2;
// The other tiles, with fewer stages, keep less of it under way.
constexpr double kFewerBytesOfUnit = 3.0e12 * 0.62e-6;
constexpr double kTileBytesOfUnit = 3.4e12 * 0.62e-6;
constexpr double kTileCachedBytesOfUnit = 13e12 * 0.62e-6;
// The copy engine fills rows beyond the matrix with zeros one by one, 2.4 ns each.
constexpr double kFilledRow = 0.0039;
constexpr int kSharedReservedPerBlock = 1024;

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

double Size(const GpuTile& tile) { return tile.m * tile.n * (tile.k / 64.0) / (128.0 * 128.0); }

struct Work {
  double blocks = 0;           // tiles; clusters of blocks count once
  double steps_per_block = 0;  // of K
  double bytes = 0;            // of operands and results, each once
  double loaded_bytes = 0;     // of operands, as often as blocks load them
  double filled_rows = 0;      // beyond the matrices, that a step's loads bring, in the mean
  bool slabs = true;           // LoadsSlabs of all of them
};

// Rows of an operand that a box of `extent` rows has and the matrix has not. Larger matrices have
// no such box: their last tile starts earlier. Transposed operands lie along the rows of their
// boxes.
double FilledRows(int64_t extent, int64_t size, bool along_rows) {
  return along_rows ? 0 : static_cast<double>(std::max<int64_t>(0, extent - size));
}

double FilledRows(const GpuTile& tile, const GemmProblem& problem) {
  const GemmShape shape = problem.shape();
  const bool a = problem.a.transposed;
  const bool b = !problem.b.transposed;
  // The block of a cluster that has the fewest rows.
  const auto left = [](int64_t size, int extent, int blocks) {
    return std::max<int64_t>(0, size - int64_t{extent} * (blocks - 1));
  };
  const int64_t rows = tile.swapped ? shape.n : shape.m;
  const int64_t columns = tile.swapped ? shape.m : shape.n;
  return FilledRows(tile.m, left(rows, tile.m, tile.cluster), tile.swapped ? b : a) +
         FilledRows(tile.n, left(columns, tile.n, tile.cluster_n), tile.swapped ? a : b);
}

// What the blocks of a cluster load for one step, of what they share a part each.
double StepBytes(const GpuTile& tile, const GemmProblem& problem) {
  const bool b_is_k_major = tile.swapped ? !problem.a.transposed : problem.b.transposed;
  const int columns = b_is_k_major ? tile.n : tile.stage_columns();
  return 2.0 * tile.k * (tile.m * tile.cluster + columns * tile.cluster_n);
}

Work WorkOf(const GpuTile& tile, absl::Span<const GemmProblem> problems) {
  Work work;
  double steps = 0;
  for (const GemmProblem& problem : problems) {
    const auto tiles = static_cast<double>(TileCount(problem.shape(), tile));
    work.blocks += tiles;
    const GemmShape shape = problem.shape();
    work.bytes += 2.0 * (static_cast<double>(shape.m + shape.n) * static_cast<double>(shape.k) +
                         static_cast<double>(shape.m) * static_cast<double>(shape.n));
    const double tile_steps = tiles * static_cast<double>(CeilDiv(shape.k, tile.k));
    steps += tile_steps;
    work.loaded_bytes += tile_steps * StepBytes(tile, problem);
    work.slabs = work.slabs && LoadsSlabs(tile, shape.k);
    work.filled_rows += tiles * FilledRows(tile, problem);
  }
  if (work.blocks > 0) {
    work.steps_per_block = steps / work.blocks;
    work.filled_rows /= work.blocks;
  }
  return work;
}

// Blocks that come and go: waves of as many as fit, each with its own overhead.
double CostOfWaves(const PlanLimits& limits, const GpuTileEntry& entry, const Work& work) {
  const int most = BlocksAtOnce(limits, entry.tile);
  const double resident = std::clamp(work.blocks / limits.multiprocessors, 1.0, double{1} * most);
  const double waves = std::ceil(work.blocks / (double{1} * most * limits.multiprocessors));
  const double crowd = kLatencyShare + (1 - kLatencyShare) * resident / most;
  const double step_time = Size(entry.tile) * most * crowd / entry.efficiency;
  return std::max(waves * (work.steps_per_block * step_time + kBlockOverhead),
                  work.bytes / kFewerBytesOfUnit + kBlockOverhead);
}

// Of times that overlap: the longest, and a fifth more where all are as long.
double AboutTheLongest(double a, double b, double c) {
  const auto fourth = [](double x) { return x * x * x * x; };
  return std::sqrt(std::sqrt(fourth(a) + fourth(b) + fourth(c)));
}

// Blocks that stay: one start, then tile after tile.
double CostOfWalk(const PlanLimits& limits, const GpuTileEntry& entry, const Work& work) {
  const int clusters = ClustersAtOnce(limits.multiprocessors, entry.tile.blocks());
  const double rounds = std::ceil(work.blocks / clusters);
  const double fill = kFilledRow * work.filled_rows * (entry.tile.k / 64.0);
  const double overhead = kClusterOverhead * std::log2(entry.tile.blocks());
  if (entry.tile.swapped) {
    const double loads = kSwappedStep + kSwappedStepOfRow * entry.tile.n;
    const double step = loads * (work.slabs ? 1 : kStepWithoutSlabs) + fill;
    const double tile_time = work.steps_per_block * step + kSwappedWayOutOfRow * entry.tile.n;
    const double cached = work.loaded_bytes / kCachedBytesOfUnit;
    const double again = std::max(0.0, work.loaded_bytes - work.bytes) / kCachedBytesOfUnit;
    return AboutTheLongest(rounds * tile_time, work.bytes / kBytesOfUnit, cached) +
           kLoadedAgain * again + overhead + kSwappedOverhead;
  }
  const double products = work.steps_per_block * (Size(entry.tile) / entry.efficiency + fill);
  const double way_out = entry.way_out * Size(entry.tile);
  // In turn: one multiplies while the other writes, if that does not take longer.
  const double tiles_time = entry.tile.ping_pong
                                ? rounds * std::max(products, (products + way_out) / 2) + way_out
                                : rounds * (products + way_out);
  return AboutTheLongest(tiles_time, work.bytes / kTileBytesOfUnit,
                         work.loaded_bytes / kTileCachedBytesOfUnit) +
         overhead + kWalkOverhead;
}

double Cost(const PlanLimits& limits, KernelId kernel, const GpuTileEntry& entry,
            absl::Span<const GemmProblem> problems) {
  const Work work = WorkOf(entry.tile, problems);
  if (work.blocks == 0) return 0;
  if (kernel == KernelId::kTmaWgmma) return CostOfWalk(limits, entry, work);
  const double cost = CostOfWaves(limits, entry, work);
  return kernel == KernelId::kCpAsyncMma ? cost * kCpAsyncCost : cost;
}

bool FitsChip(const PlanLimits& limits, KernelId kernel, const GpuTileEntry& entry) {
  if (SharedBytes(kernel, entry.tile) > limits.shared_bytes_per_block) return false;
  if (kernel == KernelId::kTmaWgmma) return limits.compute_capability == 90;
  const bool chip = (entry.compute_capability == 120) == (limits.compute_capability >= 120);
  // TMA is sm_90's; cp.async is there from sm_80 on.
  return chip && (kernel != KernelId::kTmaMma || limits.compute_capability >= 90);
}

// The measured plan of a problem that is alone.
std::optional<Plan> FromTable(const PlanLimits& limits, absl::Span<const GemmProblem> problems,
                              const PlanTable& table) {
  if (problems.size() != 1) return std::nullopt;
  const PlanTableRow* const row = FindPlanTableRow(table, limits, problems[0]);
  if (row == nullptr) return std::nullopt;
  return Plan{.kernel = row->kernel, .tile = row->tile, .origin = PlanOrigin::kTable};
}

// The tile of the least cost.
std::optional<Plan> FromModel(const PlanLimits& limits, absl::Span<const GemmProblem> problems) {
  std::optional<Plan> best;
  double best_cost = std::numeric_limits<double>::infinity();
  for (const KernelId kernel : limits.kernels) {
    if (problems.size() > static_cast<size_t>(MaxProblems(kernel))) continue;
    if (kernel == KernelId::kSimt && kernel != limits.kernels[0]) continue;
    for (const GpuTileEntry& entry : UsableTiles(limits, kernel, problems.size() > 1)) {
      const double cost = Cost(limits, kernel, entry, problems);
      if (cost >= best_cost) continue;
      best_cost = cost;
      best = Plan{.kernel = kernel, .tile = entry.tile, .origin = PlanOrigin::kModel};
    }
    if (kernel == KernelId::kSimt) break;
  }
  return best;
}

}  // namespace

int64_t TileCount(const GemmShape& shape, const GpuTile& tile) {
  const int64_t rows = tile.swapped ? shape.n : shape.m;
  const int64_t columns = tile.swapped ? shape.m : shape.n;
  return CeilDiv(rows, int64_t{1} * tile.m * tile.cluster) *
         CeilDiv(columns, int64_t{1} * tile.n * tile.cluster_n);
}

double PlanCost(const PlanLimits& limits, KernelId kernel, const GpuTileEntry& entry,
                absl::Span<const GemmProblem> problems) {
  return Cost(limits, kernel, entry, problems);
}

int MaxProblems(KernelId kernel) {
  return kernel == KernelId::kTmaWgmma ? kMaxWgmmaProblems : kMaxLaunchProblems;
}

absl::Span<const GpuTileEntry> TilesOf(KernelId kernel) {
  if (kernel == KernelId::kTmaWgmma) return kWgmmaTiles;
  return kGpuTiles;
}

size_t SharedBytes(KernelId kernel, const GpuTile& tile) {
  return kernel == KernelId::kTmaWgmma ? WgmmaSharedBytes(tile) : tile.shared_bytes();
}

std::vector<GpuTileEntry> UsableTiles(const PlanLimits& limits, KernelId kernel, bool grouped) {
  if (kernel == KernelId::kSimt) return {{.tile = kSimtTile, .grouped = true, .efficiency = 1}};
  std::vector<GpuTileEntry> usable;
  for (const GpuTileEntry& entry : TilesOf(kernel)) {
    if (FitsChip(limits, kernel, entry) && (entry.grouped || !grouped)) usable.push_back(entry);
  }
  return usable;
}

absl::StatusOr<Plan> ChooseGpuPlan(const PlanLimits& limits, absl::Span<const GemmProblem> problems,
                                   const PlanTable& table) {
  for (const GemmProblem& problem : problems) {
    TCGEMM_RETURN_IF_ERROR(CheckInt32("m", problem.shape().m));
    TCGEMM_RETURN_IF_ERROR(CheckInt32("n", problem.shape().n));
    TCGEMM_RETURN_IF_ERROR(CheckInt32("k", problem.shape().k));
  }
  std::optional<Plan> best = FromTable(limits, problems, table);
  if (!best.has_value()) best = FromModel(limits, problems);
  if (!best.has_value()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "no kernel has a tile that fits this GPU's ", limits.shared_bytes_per_block,
        " bytes of shared memory a block and a launch of ", problems.size(), " problems"));
  }
  int64_t count = 0;
  for (const GemmProblem& problem : problems) count += TileCount(problem.shape(), best->tile);
  TCGEMM_RETURN_IF_ERROR(CheckInt32("the number of tiles", count));
  best->problems = static_cast<int>(problems.size());
  best->tiles = static_cast<int>(count);
  return problems.size() == 1 ? SplitWhereFaster(limits, problems[0], *best) : *best;
}

}  // namespace tcgemm
