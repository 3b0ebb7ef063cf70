// What crosses from host code to .cu files: plain structs, no Abseil, no exceptions. device_cuda.cc
// fills them in, the kernels' launchers take them and return cudaError_t, which device_cuda.cc
// converts.
#ifndef TCGEMM_KERNELS_LAUNCH_H_
#define TCGEMM_KERNELS_LAUNCH_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "kernels/gpu_tiles.h"

namespace tcgemm {

// A CUtensorMap: 128 opaque bytes, as cuTensorMapEncodeTiled writes them. TMA wants 64-byte
// alignment (CUDA driver API, "Tensor Map Object Management").
struct alignas(64) TensorMap {
  unsigned char bytes[128];
};

// One product of a launch. Pointers are device memory, leading dimensions in elements. Operands lie
// as stored, row-major: A is m×k, or k×m when transposed; B is k×n, or n×k when transposed.
struct LaunchProblem {
  const void* a = nullptr;        // bf16
  const void* b = nullptr;        // bf16
  void* d = nullptr;              // bf16 or fp32, m×n
  uint32_t* nonfinite = nullptr;  // set to 1 when D holds a NaN or an Inf; or null
  int64_t lda = 0;
  int64_t ldb = 0;
  int64_t ldd = 0;
  int32_t m = 0;
  int32_t n = 0;
  int32_t k = 0;
  int32_t first_tile = 0;  // tiles of the problems before this one
  bool a_transposed = false;
  bool b_transposed = false;
};

// Maps of one problem's operands, for the TMA kernels: boxes of kernels/tensor_map.h.
struct LaunchMaps {
  TensorMap a;
  TensorMap b;
};

// The parameters of a kernel are one struct by value, at most 32,764 bytes (CUDA programming guide,
// "Function Parameters", sm_70 and up): maps and problems of a whole batch fit and need no copy.
inline constexpr size_t kMaxParameterBytes = 32764;
inline constexpr int kMaxLaunchProblems = 96;

struct LaunchArguments {
  const LaunchProblem* problems = nullptr;
  const LaunchMaps* maps = nullptr;  // null for kernels without TMA
  int problem_count = 0;             // 1 … kMaxLaunchProblems
  int tile_count = 0;                // of all problems: the grid
  bool output_fp32 = false;          // else bf16
  GpuTile tile;                      // one of kGpuTiles; the simt kernel takes kSimtTile
};

// Asynchronous, on `stream`; everything passed may be gone afterwards. cudaErrorInvalidValue for a
// tile that was not compiled. Operands: base 16-byte and ld 8-element aligned for the Tensor Core
// kernels, D's ld even and its base 8-byte aligned; anything for simt.
cudaError_t LaunchTmaMma(const LaunchArguments& arguments, cudaStream_t stream);
cudaError_t LaunchCpAsyncMma(const LaunchArguments& arguments, cudaStream_t stream);
cudaError_t LaunchSimt(const LaunchArguments& arguments, cudaStream_t stream);

// Load every instantiation onto the current device and raise its shared-memory limit, so that no
// first request pays for it. Once per device, before the first launch. A tile whose shared memory
// this chip does not have is left out: ChoosePlan does not name it.
cudaError_t PrepareTmaMma();
cudaError_t PrepareCpAsyncMma();
cudaError_t PrepareSimt();

}  // namespace tcgemm

#endif  // TCGEMM_KERNELS_LAUNCH_H_
