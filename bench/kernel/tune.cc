#include "bench/kernel/tune.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "bench/kernel/operand_sets.h"
#include "kernels/gpu_plan.h"
#include "kernels/plan_table.h"

namespace tcgemm::bench {
namespace {

constexpr double kLeastGain = 1.02;

double SecondsOf(const ArmResult& arm) { return arm.rates.sustained_seconds; }

absl::StatusOr<TunedCell> RankCell(const PlanLimits& limits, const CellResult& result) {
  TunedCell tuned{.cell = result.cell};
  PlanLimits measured = limits;
  measured.kernels.clear();
  for (const ArmResult& arm : result.arms) {
    if (arm.kind == ArmKind::kRival) tuned.cublaslt_seconds = SecondsOf(arm);
    if (arm.kind != ArmKind::kOurs) continue;
    tuned.ranked.push_back(arm);
    if (std::count(measured.kernels.begin(), measured.kernels.end(), arm.plan.kernel) == 0) {
      measured.kernels.push_back(arm.plan.kernel);
    }
  }
  std::sort(tuned.ranked.begin(), tuned.ranked.end(),
            [](const ArmResult& x, const ArmResult& y) { return SecondsOf(x) < SecondsOf(y); });
  const GemmProblem problem = PaddedLayout(result.cell);
  TCGEMM_ASSIGN_OR_RETURN(const Plan model, ChooseGpuPlan(measured, {&problem, 1}, PlanTable()));
  const auto at = std::find_if(tuned.ranked.begin(), tuned.ranked.end(), [&](const ArmResult& arm) {
    return arm.plan.kernel == model.kernel && arm.plan.tile == model.tile;
  });
  if (at == tuned.ranked.end()) {
    return absl::InternalError(
        absl::StrCat("the model's tile was not measured: ", model.ToString()));
  }
  tuned.model = static_cast<size_t>(at - tuned.ranked.begin());
  return tuned;
}

const char* KernelConstant(KernelId kernel) {
  if (kernel == KernelId::kTmaWgmma) return "KernelId::kTmaWgmma";
  return kernel == KernelId::kTmaMma ? "KernelId::kTmaMma" : "KernelId::kCpAsyncMma";
}

const char* Bool(bool value) { return value ? "true" : "false"; }

std::string RowText(const TunedCell& tuned) {
  const Cell& cell = tuned.cell;
  const Plan& plan = tuned.ranked[0].plan;
  const GpuTile& tile = plan.tile;
  return absl::StrFormat(
      "    // %.2f us, the model's %.2f us\n"
      "    {{%d, %d, %d}, %s, %s, %s, %s,\n     {%d, %d, %d, %d, %d, %d, %d, %s, %s, %d}},\n",
      SecondsOf(tuned.ranked[0]) * 1e6, SecondsOf(tuned.ranked[tuned.model]) * 1e6, cell.shape.m,
      cell.shape.n, cell.shape.k, Bool(cell.a_transposed), Bool(cell.b_transposed),
      cell.output == DType::kFp32 ? "DType::kFp32" : "DType::kBf16", KernelConstant(plan.kernel),
      tile.m, tile.n, tile.k, tile.stages, tile.warps_m, tile.warps_n, tile.cluster,
      Bool(tile.swapped), Bool(tile.ping_pong), tile.cluster_n);
}

}  // namespace

absl::StatusOr<std::vector<TunedCell>> Rank(const PlanLimits& limits,
                                            const std::vector<CellResult>& cells) {
  std::vector<TunedCell> ranked;
  for (const CellResult& result : cells) {
    TCGEMM_ASSIGN_OR_RETURN(TunedCell tuned, RankCell(limits, result));
    ranked.push_back(std::move(tuned));
  }
  return ranked;
}

std::string TuneTable(const std::vector<TunedCell>& cells) {
  std::string table;
  for (const TunedCell& tuned : cells) {
    absl::StrAppendFormat(&table, "%s: cuBLASLt %.2f us\n", tuned.cell.ToString(),
                          tuned.cublaslt_seconds * 1e6);
    for (size_t i = 0; i < tuned.ranked.size(); ++i) {
      const ArmResult& arm = tuned.ranked[i];
      absl::StrAppendFormat(&table, "  %10.2f us  %5.3f of cuBLASLt  %s%s\n", SecondsOf(arm) * 1e6,
                            tuned.cublaslt_seconds / SecondsOf(arm), arm.arm,
                            i == tuned.model ? "  <- the model's" : "");
    }
  }
  return table;
}

std::string TuneCsv(const std::vector<TunedCell>& cells) {
  std::string csv = "m,n,k,layout,out,rank,arm,us,ratio_to_cublaslt,time_of_best,model\n";
  for (const TunedCell& tuned : cells) {
    const Cell& cell = tuned.cell;
    for (size_t i = 0; i < tuned.ranked.size(); ++i) {
      const double seconds = SecondsOf(tuned.ranked[i]);
      absl::StrAppendFormat(&csv, "%d,%d,%d,%s,%s,%d,%s,%.3f,%.4f,%.4f,%d\n", cell.shape.m,
                            cell.shape.n, cell.shape.k, cell.LayoutString(), cell.OutputString(),
                            i + 1, tuned.ranked[i].arm, seconds * 1e6,
                            tuned.cublaslt_seconds / seconds, seconds / SecondsOf(tuned.ranked[0]),
                            i == tuned.model ? 1 : 0);
    }
  }
  return csv;
}

std::string PlanTableText(const PlanLimits& limits, const std::vector<TunedCell>& cells,
                          const TableSource& source) {
  std::string rows;
  int count = 0;
  for (const TunedCell& tuned : cells) {
    if (tuned.cell.accumulate) continue;
    const double gain = SecondsOf(tuned.ranked[tuned.model]) / SecondsOf(tuned.ranked[0]);
    if (gain < kLeastGain) continue;
    absl::StrAppend(&rows, RowText(tuned));
    ++count;
  }
  return absl::StrFormat(
      "// Written by kernel_bench --write-table. Of %d products; for those without a row the model "
      "is\n"
      "// as good.\n"
      "constexpr char kPlanTableChip[] =\n    \"%s\";\n"
      "constexpr char kPlanTableDate[] = \"%s\";\n"
      "constexpr int kPlanTableComputeCapability = %d;\n"
      "constexpr int kPlanTableMultiprocessors = %d;\n"
      "constexpr uint64_t kPlanTableTiles = 0x%xu;\n"
      "constexpr std::array<PlanTableRow, %d> kPlanTableRows = {{\n%s}};\n",
      cells.size(), source.chip, source.date, limits.compute_capability, limits.multiprocessors,
      TilesFingerprint(), count, rows);
}

}  // namespace tcgemm::bench
