#include "kernels/plan.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/cpu_gemm.h"
#include "kernels/gpu_plan.h"
#include "kernels/plan_table.h"

namespace tcgemm {

std::vector<KernelId> AllKernels() {
  return {
      KernelId::kCpuPlain,
#ifdef TCGEMM_ONEDNN
      KernelId::kCpuOnednnBf16, KernelId::kCpuOnednnFp32,
#endif
#ifdef TCGEMM_CUDA
      KernelId::kSimt,          KernelId::kCpAsyncMma,    KernelId::kTmaMma, KernelId::kTmaWgmma,
#endif
  };
}

bool IsGpuKernel(KernelId kernel) {
  return kernel == KernelId::kSimt || kernel == KernelId::kCpAsyncMma ||
         kernel == KernelId::kTmaMma || kernel == KernelId::kTmaWgmma;
}

std::string_view KernelName(KernelId kernel) {
  switch (kernel) {
    case KernelId::kCpuPlain:
      return "cpu_plain";
    case KernelId::kCpuOnednnBf16:
      return "cpu_onednn_bf16";
    case KernelId::kCpuOnednnFp32:
      return "cpu_onednn_fp32";
    case KernelId::kSimt:
      return "simt";
    case KernelId::kCpAsyncMma:
      return "cp_async_mma";
    case KernelId::kTmaMma:
      return "tma_mma";
    case KernelId::kTmaWgmma:
      return "tma_wgmma";
  }
  return "?";
}

namespace {

std::string ClusterString(const GpuTile& tile) {
  if (tile.blocks() == 1) return "";
  return absl::StrCat(" cluster=", tile.cluster,
                      tile.cluster_n > 1 ? absl::StrCat("x", tile.cluster_n) : "");
}

}  // namespace

std::string Plan::ToString() const {
  if (IsGpuKernel(kernel)) {
    return absl::StrCat(std::string(KernelName(kernel)), " ", tile.m, "x", tile.n, "x", tile.k,
                        " stages=", tile.stages, ClusterString(tile),
                        tile.ping_pong ? " ping-pong" : "", " tiles=", tiles,
                        " problems=", problems, splits > 1 ? absl::StrCat(" splits=", splits) : "",
                        origin == PlanOrigin::kModel   ? " by=model"
                        : origin == PlanOrigin::kTable ? " by=table"
                                                       : "");
  }
  return absl::StrCat(std::string(KernelName(kernel)), " panel=", panel_rows,
                      " problems=", problems);
}

absl::StatusOr<Plan> ChoosePlan(const PlanLimits& limits, absl::Span<const GemmProblem> problems) {
  if (problems.empty()) return absl::InvalidArgumentError("a launch needs at least one problem");
  if (problems.size() > static_cast<size_t>(limits.max_problems)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a launch of ", problems.size(), " problems; the limit is ", limits.max_problems));
  }
  for (const GemmProblem& problem : problems) {
    if (problem.d.dtype != problems[0].d.dtype) {
      return absl::InvalidArgumentError(absl::StrCat(
          "a launch has one output type, not ", std::string(DTypeName(problems[0].d.dtype)),
          " and ", std::string(DTypeName(problem.d.dtype))));
    }
  }
  if (limits.kernels.empty()) {
    return absl::FailedPreconditionError("this device has no kernel");
  }
  if (IsGpuKernel(limits.kernels[0])) {
    return ChooseGpuPlan(limits, problems, MeasuredPlanTable());
  }
  return Plan{.kernel = limits.kernels[0],
              .panel_rows = kCpuPanelRows,
              .problems = static_cast<int>(problems.size()),
              .tile = {},
              .tiles = 0};
}

}  // namespace tcgemm
