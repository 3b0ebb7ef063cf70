#include "kernels/plan_table.h"

#include <algorithm>
#include <array>
#include <vector>

#include "kernels/gpu_plan.h"
#include "kernels/gpu_tiles.h"

namespace tcgemm {
namespace {

#include "kernels/plan_table.inc"

// FNV-1a, a step of 64 bits for each field.
uint64_t Mix(uint64_t hash, int64_t value) {
  return (hash ^ static_cast<uint64_t>(value)) * 0x100000001b3u;
}

uint64_t Mix(uint64_t hash, const GpuTileEntry& entry) {
  const GpuTile& tile = entry.tile;
  for (const int field :
       {tile.m, tile.n, tile.k, tile.stages, tile.warps_m, tile.warps_n, tile.cluster,
        int{tile.swapped}, int{tile.ping_pong}, tile.cluster_n, entry.compute_capability}) {
    hash = Mix(hash, field);
  }
  return hash;
}

bool IsRowOf(const PlanTableRow& row, const GemmProblem& problem) {
  return row.shape == problem.shape() && row.a_transposed == problem.a.transposed &&
         row.b_transposed == problem.b.transposed && row.output == problem.d.dtype;
}

bool CanRun(const PlanTableRow& row, const PlanLimits& limits) {
  if (std::count(limits.kernels.begin(), limits.kernels.end(), row.kernel) == 0) return false;
  const std::vector<GpuTileEntry> usable = UsableTiles(limits, row.kernel, false);
  return std::any_of(usable.begin(), usable.end(),
                     [&](const GpuTileEntry& entry) { return entry.tile == row.tile; });
}

}  // namespace

const PlanTable& MeasuredPlanTable() {
  static const PlanTable table = {.chip = kPlanTableChip,
                                  .date = kPlanTableDate,
                                  .compute_capability = kPlanTableComputeCapability,
                                  .multiprocessors = kPlanTableMultiprocessors,
                                  .tiles = kPlanTableTiles,
                                  .rows = kPlanTableRows};
  return table;
}

uint64_t TilesFingerprint() {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const GpuTileEntry& entry : kGpuTiles) hash = Mix(hash, entry);
  for (const GpuTileEntry& entry : kWgmmaTiles) hash = Mix(hash, entry);
  return hash;
}

bool PlanTableApplies(const PlanTable& table, const PlanLimits& limits) {
  static const uint64_t fingerprint = TilesFingerprint();
  return table.tiles == fingerprint && table.compute_capability == limits.compute_capability &&
         table.multiprocessors == limits.multiprocessors;
}

const PlanTableRow* FindPlanTableRow(const PlanTable& table, const PlanLimits& limits,
                                     const GemmProblem& problem) {
  if (!PlanTableApplies(table, limits)) return nullptr;
  const auto row = std::find_if(table.rows.begin(), table.rows.end(),
                                [&](const PlanTableRow& it) { return IsRowOf(it, problem); });
  return row != table.rows.end() && CanRun(*row, limits) ? &*row : nullptr;
}

}  // namespace tcgemm
