// The parameters of a Tensor Core kernel: a whole batch by value.
#ifndef TCGEMM_KERNELS_TILE_PARAMETERS_H_
#define TCGEMM_KERNELS_TILE_PARAMETERS_H_

#include "kernels/gpu_problem.h"
#include "kernels/launch.h"

namespace tcgemm {

// The maps come first: they want 64-byte alignment. MAPS is 0 for kernels without TMA, which read
// the operands by address.
template <int PROBLEMS, int MAPS>
struct KernelParameters {
  LaunchMaps maps[MAPS];
  TileProblem problems[PROBLEMS];
  int problem_count;
  bool output_fp32;
};

template <int PROBLEMS>
struct KernelParameters<PROBLEMS, 0> {
  LaunchProblem problems[PROBLEMS];
  int problem_count;
  bool output_fp32;
};

static_assert(sizeof(KernelParameters<kMaxLaunchProblems, kMaxLaunchProblems>) <=
              kMaxParameterBytes);

template <int PROBLEMS, int MAPS>
KernelParameters<PROBLEMS, MAPS> MakeParameters(const LaunchArguments& arguments) {
  KernelParameters<PROBLEMS, MAPS> parameters;
  for (int i = 0; i < arguments.problem_count; ++i) {
    parameters.problems[i] = arguments.problems[i];
    if constexpr (MAPS > 0) parameters.maps[i] = arguments.maps[i];
  }
  parameters.problem_count = arguments.problem_count;
  parameters.output_fp32 = arguments.output_fp32;
  return parameters;
}

}  // namespace tcgemm

#endif  // TCGEMM_KERNELS_TILE_PARAMETERS_H_
