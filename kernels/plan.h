// Which kernel runs a batch and how: plain data, decided on the host, printable, testable there.
#ifndef TCGEMM_KERNELS_PLAN_H_
#define TCGEMM_KERNELS_PLAN_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/gemm.h"
#include "kernels/gpu_tiles.h"

namespace tcgemm {

enum class KernelId {
  kCpuPlain,       // cpu_plain.cc: no dependency, scalar K order
  kCpuOnednnBf16,  // cpu_onednn.cc: bf16 dot products (AVX512_BF16 and up)
  kCpuOnednnFp32,  // cpu_onednn.cc: operands widened to fp32
  kSimt,           // simt.cu: any GPU, FMA; its bits are its own
  kCpAsyncMma,     // cp_async_mma.cu: sm_80 and up
  kTmaMma,         // tma_mma.cu: sm_90 and up
  kTmaWgmma,       // tma_wgmma.cu: sm_90a
};

// Every kernel that this build could name, for metrics that must exist at 0 from the start.
std::vector<KernelId> AllKernels();
// The name in responses, logs and the metric label: "cpu_plain", "cpu_onednn_bf16", …
std::string_view KernelName(KernelId kernel);
bool IsGpuKernel(KernelId kernel);

// Who chose a plan's tile.
enum class PlanOrigin {
  kGiven,  // the caller: tests and benchmarks
  kModel,  // the cost model of gpu_plan.cc
  kTable,  // a measurement, plan_table.h
};

struct Plan {
  KernelId kernel = KernelId::kCpuPlain;
  // Rows of A in one call of the inner kernel. Constant for a kernel: bits must not depend on M.
  int panel_rows = 0;
  int problems = 0;                        // in this launch
  GpuTile tile;                            // of one thread block, for GPU kernels
  int tiles = 0;                           // of all problems: the grid
  PlanOrigin origin = PlanOrigin::kGiven;  // of a GPU's plan
  // Parts of K, each a problem of `tile`; `tiles` are those of all. More than 1: split_k.h.
  int splits = 1;

  // "cpu_onednn_bf16 panel=16 problems=3", "tma_mma 128x128x64 stages=3 tiles=96 problems=1
  // by=model".
  std::string ToString() const;
};

// What ChoosePlan may use: what the device can run, best first. Of a GPU's Tensor Core kernels,
// which give the same bits, the cheapest for the batch is taken; simt only if it is the first.
struct PlanLimits {
  std::vector<KernelId> kernels;
  int max_problems = 1024;  // in one launch
  // Of a GPU; zeros for the CPU.
  int compute_capability = 0;  // 90 for sm_90
  int multiprocessors = 0;
  size_t shared_bytes_per_block = 0;  // with opt-in
  size_t shared_bytes_per_multiprocessor = 0;
};

// Tiles that cover D; a cluster of blocks counts as one.
int64_t TileCount(const GemmShape& shape, const GpuTile& tile);

// The plan for one launch over `problems`, which were validated and share one output type. A
// function of its arguments alone, and of the table that was compiled in (plan_table.h).
// INVALID_ARGUMENT when `problems` is empty or mixes output types, has more than
// limits.max_problems, a dimension beyond int32 or more tiles than int32 on a GPU;
// FAILED_PRECONDITION when limits.kernels is empty.
absl::StatusOr<Plan> ChoosePlan(const PlanLimits& limits, absl::Span<const GemmProblem> problems);

}  // namespace tcgemm

#endif  // TCGEMM_KERNELS_PLAN_H_
