// The problem that every kernel solves: D = act(alpha·op(A)·op(B) + beta·C + bias).
//
// Shapes: op(A) is m×k, op(B) is k×n, D is m×n and never transposed. A and B are bf16; D is bf16
// or fp32. K = 0 is allowed here (the product is zero) though not on the wire. The rest, which is
// nothing by default, is matrix/epilogue.h's.
#ifndef TCGEMM_KERNELS_GEMM_H_
#define TCGEMM_KERNELS_GEMM_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "matrix/epilogue.h"
#include "matrix/matrix_view.h"

namespace tcgemm {

struct GemmShape {
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;

  bool operator==(const GemmShape&) const = default;
  // 2·m·n·k, as a double: beyond 2^53 it is rounded, never overflowed.
  double flops() const {
    return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  }
  // "64x128x256": m, n, k.
  std::string ToString() const;
};

// Device memory that a launch may write partial sums to, 256-byte aligned.
struct SplitWorkspace {
  std::byte* data = nullptr;
  size_t bytes = 0;
};

struct GemmProblem {
  MatrixView a;
  MatrixView b;
  MutableMatrixView d;
  Epilogue epilogue;
  // Where the epilogue writes 1 if any element of D is NaN or Inf (it never writes 0); or null.
  uint32_t* nonfinite = nullptr;
  // Where it is given, K may be split into parts whose sums are added in their order: faster where
  // D has few tiles, and other bits. Nothing is split otherwise, in a launch of several problems,
  // or where the parts' sums do not fit.
  SplitWorkspace workspace;

  GemmShape shape() const { return {.m = a.op_rows(), .n = b.op_cols(), .k = a.op_cols()}; }
  // The k that kernels sum over: none when alpha is 0, and then they read neither A nor B.
  int64_t summed_k() const { return epilogue.alpha == 0 ? 0 : a.op_cols(); }
};

// INVALID_ARGUMENT, naming the field, its value and the limit, unless: the inner dimensions agree;
// D is m×n, not transposed, bf16 or fp32; A and B are bf16; no dimension is negative; every
// ld ≥ max(1, cols); every span in bytes fits int64; data is non-null where a span is not empty;
// the epilogue is one (ValidateEpilogue), with views as above where it reads them.
absl::Status ValidateProblem(const GemmProblem& problem);

// "NN", "TN", "NT" or "TT": is A, is B transposed.
std::string LayoutName(const GemmProblem& problem);

}  // namespace tcgemm

#endif  // TCGEMM_KERNELS_GEMM_H_
