// One product as a GPU kernel sees it: plain data, shared by host code and .cu files.
#ifndef TCGEMM_KERNELS_GPU_PROBLEM_H_
#define TCGEMM_KERNELS_GPU_PROBLEM_H_

#include <cstddef>
#include <cstdint>

#include "matrix/activation.h"

namespace tcgemm {

// A CUtensorMap: 128 opaque bytes, as cuTensorMapEncodeTiled writes them. TMA wants 64-byte
// alignment (CUDA driver API, "Tensor Map Object Management").
struct alignas(64) TensorMap {
  unsigned char bytes[128];
};

// One product of a launch, as every kernel needs it. Pointers are device memory, leading dimensions
// and strides in elements. With swapped operands m counts columns of D, and n rows.
struct TileProblem {
  void* d = nullptr;              // bf16 or fp32, m×n
  uint32_t* nonfinite = nullptr;  // set to 1 when D holds a NaN or an Inf; or null
  const void* c = nullptr;        // null when it is not read; stored as D is
  const void* bias = nullptr;     // null when there is none
  uint32_t ldd = 0;
  uint32_t ldc = 0;
  // Of the bias, from one row of D to the next and from one column to the next: one of them is 0.
  uint32_t bias_row_stride = 0;
  uint32_t bias_column_stride = 0;
  float alpha = 1;
  float beta = 0;
  int32_t m = 0;
  int32_t n = 0;
  int32_t k = 0;           // to sum over: 0 when alpha is 0
  int32_t first_tile = 0;  // tiles of the problems before this one
  bool a_transposed = false;
  bool b_transposed = false;
  bool loads_slabs = false;   // kernels/tensor_map.h, LoadsSlabs
  bool has_epilogue = false;  // D is more than the product
  bool c_fp32 = false;        // else bf16
  bool bias_fp32 = false;
  Activation activation = Activation::kNone;
};

// The same for kernels that read the operands themselves: A is m×k, or k×m when transposed; B is
// k×n, or n×k when transposed; both row-major bf16.
struct LaunchProblem : TileProblem {
  const void* a = nullptr;
  const void* b = nullptr;
  int64_t lda = 0;
  int64_t ldb = 0;
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
inline constexpr int kMaxWgmmaProblems = 64;  // its results have maps too

}  // namespace tcgemm

#endif  // TCGEMM_KERNELS_GPU_PROBLEM_H_
