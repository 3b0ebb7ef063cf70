// What crosses from host code to .cu files: plain structs, no Abseil, no exceptions. device_cuda.cc
// fills them in, the kernels' launchers take them and return cudaError_t, which device_cuda.cc
// converts.
#ifndef TCGEMM_KERNELS_LAUNCH_H_
#define TCGEMM_KERNELS_LAUNCH_H_

#include <cuda_runtime_api.h>

#include "kernels/gpu_problem.h"
#include "kernels/gpu_tiles.h"

namespace tcgemm {

struct LaunchArguments {
  const LaunchProblem* problems = nullptr;
  const LaunchMaps* maps = nullptr;   // null for kernels without TMA
  const TensorMap* d_maps = nullptr;  // of the results, for tma_wgmma; null when swapped
  int problem_count = 0;              // 1 … kMaxLaunchProblems
  int tile_count = 0;                 // of all problems: the grid
  int multiprocessors = 0;            // of the device, for kernels whose blocks stay
  bool output_fp32 = false;           // else bf16
  GpuTile tile;                       // one of kGpuTiles; the simt kernel takes kSimtTile
};

// Asynchronous, on `stream`; everything passed may be gone afterwards. cudaErrorInvalidValue for a
// tile that was not compiled. Operands: base 16-byte and ld 8-element aligned for the Tensor Core
// kernels, D's and C's ld even and their bases 8-byte aligned; anything for simt.
cudaError_t LaunchTmaMma(const LaunchArguments& arguments, cudaStream_t stream);
cudaError_t LaunchTmaWgmma(const LaunchArguments& arguments, cudaStream_t stream);  // sm_90a
cudaError_t LaunchCpAsyncMma(const LaunchArguments& arguments, cudaStream_t stream);
cudaError_t LaunchSimt(const LaunchArguments& arguments, cudaStream_t stream);

// Load every instantiation onto the current device and raise its shared-memory limit, so that no
// first request pays for it. Once per device, before the first launch. A tile whose shared memory
// this chip does not have is left out: ChoosePlan does not name it.
cudaError_t PrepareTmaMma();
cudaError_t PrepareTmaWgmma();
cudaError_t PrepareCpAsyncMma();
cudaError_t PrepareSimt();

}  // namespace tcgemm

#endif  // TCGEMM_KERNELS_LAUNCH_H_
