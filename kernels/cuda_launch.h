// From a plan and its problems to the arguments of a kernel's launcher: checks and data alone, no
// CUDA call, so that it is tested on the host. Not public.
//
// Threads: none; a LaunchBuilder belongs to one stream, and so to one thread at a time.
#ifndef TCGEMM_KERNELS_CUDA_LAUNCH_H_
#define TCGEMM_KERNELS_CUDA_LAUNCH_H_

#include <array>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/gemm.h"
#include "kernels/launch.h"
#include "kernels/plan.h"
#include "kernels/split_reduce.h"
#include "kernels/tensor_map_cache.h"

namespace tcgemm {

// INVALID_ARGUMENT, saying what is wrong, unless `plan` is one that a GPU of `limits` can run over
// `problems`: a GPU kernel for its compute capability (simt on any), as many problems as the plan
// says and at most MaxProblems(kernel), a tile that the kernel was compiled for, that fits the
// GPU's shared memory and, for several problems, takes several, as many tiles as cover them, one
// output type, valid problems (gemm.h) with int32 dimensions, and for the Tensor Core kernels the
// alignment that launch.h asks for. With K split (plan.splits > 1) the same of the parts, which
// take one problem of tma_wgmma and lie in its workspace.
absl::Status CheckLaunch(const PlanLimits& limits, const Plan& plan,
                         absl::Span<const GemmProblem> problems);

// What adds the parts of a checked plan with splits > 1.
SplitReduceArguments ReduceArgumentsOf(const Plan& plan, const GemmProblem& problem);

// Keeps the arrays of a launch and the tensor maps of its stream; allocates nothing after it is
// made.
class LaunchBuilder {
 public:
  explicit LaunchBuilder(TensorMapEncoder encoder) : maps_cache_(std::move(encoder)) {}

  // Arguments that point into this object, valid until the next Build. The plan was checked. A
  // problem with a zero dimension gets no map: the kernel reads nothing. The encoder's error.
  absl::StatusOr<LaunchArguments> Build(const PlanLimits& limits, const Plan& plan,
                                        absl::Span<const GemmProblem> problems);

  const TensorMapCounts& counts() const { return maps_cache_.counts(); }

 private:
  absl::Status FillMaps(const Plan& plan, const GemmProblem& problem, size_t index);

  TensorMapCache maps_cache_;
  std::array<LaunchProblem, kMaxLaunchProblems> problems_;
  std::array<LaunchMaps, kMaxLaunchProblems> maps_;
  std::array<TensorMap, kMaxWgmmaProblems> d_maps_;
};

}  // namespace tcgemm

#endif  // TCGEMM_KERNELS_CUDA_LAUNCH_H_
