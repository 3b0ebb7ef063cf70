// The second half of a product whose K was split: the parts' sums become D. Plain structs, as
// kernels/launch.h.
#ifndef TCGEMM_KERNELS_SPLIT_REDUCE_H_
#define TCGEMM_KERNELS_SPLIT_REDUCE_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/gpu_problem.h"

namespace tcgemm {

struct SplitReduceArguments {
  LaunchProblem problem;         // D, its epilogue; a and b are not read
  const float* parts = nullptr;  // `count` matrices of m×n, one behind the other
  int64_t part_elements = 0;     // from one to the next
  int64_t ld = 0;                // of each; a multiple of 4
  int count = 0;                 // ≥ 1
  bool output_fp32 = false;      // else bf16
};

// D = act(alpha·((part 0 + part 1) + …) + beta·C + bias): every sum in fp32, rounded to nearest, in
// this order. Starts while the kernel before it in the stream still runs and waits for its end
// there (ptx/grid_dependency.h). Asynchronous. sm_90 and up.
cudaError_t LaunchSplitReduce(const SplitReduceArguments& arguments, cudaStream_t stream);

// Loads it onto the current device. Once per device, before the first launch.
cudaError_t PrepareSplitReduce();

}  // namespace tcgemm

#endif  // TCGEMM_KERNELS_SPLIT_REDUCE_H_
