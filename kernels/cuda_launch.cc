#include "kernels/cuda_launch.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/gpu_plan.h"
#include "kernels/split_k.h"
#include "kernels/tensor_map.h"

namespace tcgemm {
namespace {

absl::Status Refuse(const Plan& plan, const std::string& why) {
  return absl::InvalidArgumentError(absl::StrCat("plan ", plan.ToString(), ": ", why));
}

int MinComputeCapability(KernelId kernel) {
  return kernel == KernelId::kTmaMma || kernel == KernelId::kTmaWgmma ? 90 : 80;
}

// Dᵀ = op(B)ᵀ·op(A)ᵀ: the operands change places, each transposed, which costs nothing.
GemmProblem Swapped(const GemmProblem& problem) {
  GemmProblem swapped = problem;
  swapped.a = problem.b;
  swapped.b = problem.a;
  swapped.a.transposed = !problem.b.transposed;
  swapped.b.transposed = !problem.a.transposed;
  return swapped;
}

// Why `tile` cannot run; "" when it can.
std::string TileProblem(const PlanLimits& limits, const Plan& plan) {
  if (plan.kernel == KernelId::kSimt) {
    return plan.tile == kSimtTile ? "" : "simt has one tile, kSimtTile";
  }
  for (const GpuTileEntry& entry : TilesOf(plan.kernel)) {
    if (!(entry.tile == plan.tile)) continue;
    // As UsableTiles in gpu_plan.cc: the sets of sm_120 and of the others are apart.
    if ((entry.compute_capability == 120) != (limits.compute_capability >= 120)) continue;
    const size_t shared_bytes = SharedBytes(plan.kernel, entry.tile);
    if (shared_bytes > limits.shared_bytes_per_block) {
      return absl::StrCat("its tile needs ", shared_bytes,
                          " bytes of shared memory a block, the GPU has ",
                          limits.shared_bytes_per_block);
    }
    return plan.problems > 1 && !entry.grouped ? "its tile takes one problem at a time" : "";
  }
  return absl::StrCat("no kernel for compute capability ", limits.compute_capability,
                      " was compiled for its tile");
}

absl::Status CheckPlan(const PlanLimits& limits, const Plan& plan, size_t problem_count) {
  if (!IsGpuKernel(plan.kernel)) return Refuse(plan, "not a kernel of this device");
  if (limits.compute_capability < MinComputeCapability(plan.kernel)) {
    return Refuse(plan, absl::StrCat("the kernel needs compute capability ",
                                     MinComputeCapability(plan.kernel), ", the GPU has ",
                                     limits.compute_capability));
  }
  if (plan.kernel == KernelId::kTmaWgmma && limits.compute_capability != 90) {
    return Refuse(plan, absl::StrCat("wgmma is sm_90a's, the GPU has compute capability ",
                                     limits.compute_capability));
  }
  const int max_problems = MaxProblems(plan.kernel);
  if (problem_count == 0 || problem_count > static_cast<size_t>(max_problems)) {
    return Refuse(plan,
                  absl::StrCat(problem_count, " problems; a launch takes 1 to ", max_problems));
  }
  if (static_cast<size_t>(plan.problems) != problem_count) {
    return Refuse(plan, absl::StrCat("not one of ", problem_count, " problems"));
  }
  const std::string tile_problem = TileProblem(limits, plan);
  return tile_problem.empty() ? absl::OkStatus() : Refuse(plan, tile_problem);
}

// Others, and swapped results, go from registers to memory.
bool StoresByTma(const Plan& plan) {
  return plan.kernel == KernelId::kTmaWgmma && !plan.tile.swapped;
}

absl::Status CheckDimension(const char* name, int64_t value) {
  if (value <= std::numeric_limits<int32_t>::max()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, " is ", value, "; the limit on a GPU is 2147483647"));
}

absl::Status CheckAlignment(const char* name, const MatrixView& matrix, int64_t ld_multiple,
                            uintptr_t base_multiple) {
  if (matrix.span_elements() == 0) return absl::OkStatus();
  if (matrix.ld % ld_multiple != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        name, ".ld is ", matrix.ld, "; Tensor Core kernels take multiples of ", ld_multiple));
  }
  if (reinterpret_cast<uintptr_t>(matrix.data) % base_multiple != 0) {
    return absl::InvalidArgumentError(absl::StrCat(name, ".data is not aligned to ", base_multiple,
                                                   " bytes, as Tensor Core kernels need it"));
  }
  return absl::OkStatus();
}

// Those that kernels multiply by a row in 32 bits.
absl::Status CheckLd(const char* name, const MatrixView& matrix) {
  if (matrix.ld <= std::numeric_limits<uint32_t>::max()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, ".ld is ", matrix.ld, "; the limit on a GPU is 4294967295"));
}

absl::Status CheckEpilogue(const Plan& plan, const Epilogue& epilogue) {
  if (epilogue.has_bias()) TCGEMM_RETURN_IF_ERROR(CheckLd("bias", epilogue.bias));
  if (!epilogue.reads_c()) return absl::OkStatus();
  TCGEMM_RETURN_IF_ERROR(CheckLd("c", epilogue.c));
  if (plan.kernel == KernelId::kSimt) return absl::OkStatus();
  return CheckAlignment("c", epilogue.c, 2, 8);
}

absl::Status CheckProblem(const Plan& plan, const GemmProblem& problem) {
  TCGEMM_RETURN_IF_ERROR(ValidateProblem(problem));
  TCGEMM_RETURN_IF_ERROR(CheckDimension("m", problem.shape().m));
  TCGEMM_RETURN_IF_ERROR(CheckDimension("n", problem.shape().n));
  TCGEMM_RETURN_IF_ERROR(CheckDimension("k", problem.shape().k));
  TCGEMM_RETURN_IF_ERROR(CheckLd("d", AsConst(problem.d)));
  TCGEMM_RETURN_IF_ERROR(CheckEpilogue(plan, problem.epilogue));
  if (plan.kernel == KernelId::kSimt) return absl::OkStatus();
  TCGEMM_RETURN_IF_ERROR(CheckAlignment("a", problem.a, 8, 16));
  TCGEMM_RETURN_IF_ERROR(CheckAlignment("b", problem.b, 8, 16));
  if (StoresByTma(plan)) {
    const auto element = static_cast<int64_t>(DTypeSize(problem.d.dtype));
    return CheckAlignment("d", AsConst(problem.d), 16 / element, 16);
  }
  return CheckAlignment("d", AsConst(problem.d), 2, 8);
}

absl::Status CheckSplit(const PlanLimits& limits, const Plan& plan,
                        absl::Span<const GemmProblem> problems) {
  if (problems.size() != 1) return Refuse(plan, "K is split of one problem alone");
  const GemmProblem& problem = problems[0];
  TCGEMM_RETURN_IF_ERROR(CheckProblem(plan, problem));
  if (plan.kernel != KernelId::kTmaWgmma || plan.tile.swapped) {
    return Refuse(plan, "K is split by tma_wgmma, with operands that are not swapped");
  }
  const int64_t steps = (problem.summed_k() + kSplitStep - 1) / kSplitStep;
  if (plan.splits < 2 || plan.splits > std::min<int64_t>(kMaxSplits, steps)) {
    return Refuse(plan, absl::StrCat("K has ", steps, " steps; it is split into 2 to ",
                                     std::min<int64_t>(kMaxSplits, steps), " parts"));
  }
  const size_t needed = SplitWorkspaceBytes(problem.shape(), plan.splits);
  const SplitWorkspace& workspace = problem.workspace;
  if (workspace.bytes < needed || reinterpret_cast<uintptr_t>(workspace.data) % 256 != 0) {
    return Refuse(plan, absl::StrCat("its sums need ", needed, " bytes, aligned to 256; there are ",
                                     workspace.bytes));
  }
  const SplitParts parts(problem, plan.splits, workspace.data);
  const Plan launch = PlanOfParts(plan, parts.problems());
  if (launch.tiles != plan.tiles) {
    return Refuse(plan, absl::StrCat("its parts have ", launch.tiles, " tiles"));
  }
  return CheckLaunch(limits, launch, parts.problems());
}

}  // namespace

absl::Status CheckLaunch(const PlanLimits& limits, const Plan& plan,
                         absl::Span<const GemmProblem> problems) {
  if (plan.splits != 1) return CheckSplit(limits, plan, problems);
  TCGEMM_RETURN_IF_ERROR(CheckPlan(limits, plan, problems.size()));
  int64_t tiles = 0;
  for (size_t i = 0; i < problems.size(); ++i) {
    const absl::Status status = CheckProblem(plan, problems[i]);
    if (!status.ok()) {
      return Refuse(plan, absl::StrCat("problem ", i, ": ", std::string(status.message())));
    }
    if (problems[i].d.dtype != problems[0].d.dtype) {
      return Refuse(plan, absl::StrCat("problem ", i, " has another output type than problem 0"));
    }
    tiles += TileCount(problems[i].shape(), plan.tile);
  }
  if (tiles != plan.tiles) {
    return Refuse(plan, absl::StrCat("its problems have ", tiles, " tiles"));
  }
  return absl::OkStatus();
}

absl::Status LaunchBuilder::FillMaps(const Plan& plan, const GemmProblem& problem, size_t index) {
  const GemmShape shape = problem.shape();
  if (shape.m == 0 || shape.n == 0) return absl::OkStatus();
  if (StoresByTma(plan)) {
    TCGEMM_ASSIGN_OR_RETURN(const TensorMapKey key_d, TensorMapKeyOfD(problem));
    TCGEMM_ASSIGN_OR_RETURN(const TensorMap* map_d, maps_cache_.Get(key_d));
    d_maps_[index] = *map_d;
  }
  if (problem.summed_k() == 0) return absl::OkStatus();
  TCGEMM_ASSIGN_OR_RETURN(const TensorMapKey key_a, TensorMapKeyOfA(problem, plan.tile));
  TCGEMM_ASSIGN_OR_RETURN(const TensorMapKey key_b, TensorMapKeyOfB(problem, plan.tile));
  TCGEMM_ASSIGN_OR_RETURN(const TensorMap* map_a, maps_cache_.Get(key_a));
  maps_[index].a = *map_a;
  TCGEMM_ASSIGN_OR_RETURN(const TensorMap* map_b, maps_cache_.Get(key_b));
  maps_[index].b = *map_b;
  return absl::OkStatus();
}

namespace {

void FillEpilogue(const Epilogue& epilogue, const EpilogueShape& d, LaunchProblem& filled) {
  filled.has_epilogue = !epilogue.is_default();
  filled.alpha = epilogue.alpha;
  filled.activation = epilogue.activation;
  if (epilogue.reads_c()) {
    filled.c = epilogue.c.data;
    filled.ldc = static_cast<uint32_t>(epilogue.c.ld);
    filled.c_fp32 = epilogue.c.dtype == DType::kFp32;
    filled.beta = epilogue.beta;
  }
  if (epilogue.has_bias()) {
    const bool column = BiasIsColumn(epilogue.bias, d);
    filled.bias = epilogue.bias.data;
    filled.bias_fp32 = epilogue.bias.dtype == DType::kFp32;
    filled.bias_row_stride = column ? static_cast<uint32_t>(epilogue.bias.ld) : 0;
    filled.bias_column_stride = column ? 0 : 1;
  }
}

// Of a problem whose operands may have been swapped; D, and what is added to it, never are.
LaunchProblem MakeLaunchProblem(const GemmProblem& problem) {
  const GemmShape shape = problem.shape();
  LaunchProblem filled;
  filled.a = problem.a.data;
  filled.b = problem.b.data;
  filled.lda = problem.a.ld;
  filled.ldb = problem.b.ld;
  filled.a_transposed = problem.a.transposed;
  filled.b_transposed = problem.b.transposed;
  filled.d = problem.d.data;
  filled.nonfinite = problem.nonfinite;
  filled.ldd = static_cast<uint32_t>(problem.d.ld);
  filled.m = static_cast<int32_t>(shape.m);
  filled.n = static_cast<int32_t>(shape.n);
  filled.k = static_cast<int32_t>(problem.summed_k());
  FillEpilogue(problem.epilogue, {.m = problem.d.rows, .n = problem.d.cols}, filled);
  return filled;
}

}  // namespace

SplitReduceArguments ReduceArgumentsOf(const Plan& plan, const GemmProblem& problem) {
  const GemmShape shape = problem.shape();
  const size_t part_bytes = SplitWorkspaceBytes(shape, 1);
  return {.problem = MakeLaunchProblem(problem),
          .parts = reinterpret_cast<const float*>(problem.workspace.data),
          .part_elements = static_cast<int64_t>(part_bytes / sizeof(float)),
          .ld = SplitLd(shape.n),
          .count = plan.splits,
          .output_fp32 = problem.d.dtype == DType::kFp32};
}

absl::StatusOr<LaunchArguments> LaunchBuilder::Build(const PlanLimits& limits, const Plan& plan,
                                                     absl::Span<const GemmProblem> problems) {
  const bool tma = plan.kernel == KernelId::kTmaMma || plan.kernel == KernelId::kTmaWgmma;
  int64_t first_tile = 0;
  for (size_t i = 0; i < problems.size(); ++i) {
    const GemmProblem problem = plan.tile.swapped ? Swapped(problems[i]) : problems[i];
    problems_[i] = MakeLaunchProblem(problem);
    problems_[i].first_tile = static_cast<int32_t>(first_tile);
    problems_[i].loads_slabs = LoadsSlabs(plan.tile, problem.shape().k);
    if (tma) TCGEMM_RETURN_IF_ERROR(FillMaps(plan, problem, i));
    first_tile += TileCount(problems[i].shape(), plan.tile);
  }
  return LaunchArguments{.problems = problems_.data(),
                         .maps = tma ? maps_.data() : nullptr,
                         .d_maps = StoresByTma(plan) ? d_maps_.data() : nullptr,
                         .problem_count = plan.problems,
                         .tile_count = plan.tiles,
                         .multiprocessors = limits.multiprocessors,
                         .output_fp32 = problems[0].d.dtype == DType::kFp32,
                         .tile = plan.tile};
}

}  // namespace tcgemm
