// Runs of elements widened to double: the inner loops of matrix/ see one type.
#ifndef TCGEMM_MATRIX_WIDEN_H_
#define TCGEMM_MATRIX_WIDEN_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "matrix/bf16.h"
#include "matrix/matrix_view.h"

namespace tcgemm {

// Where a run starts: op(matrix) element (row, col).
struct RunStart {
  int64_t row = 0;
  int64_t col = 0;
};

// Writes `count` elements of one row of op(view), from `start` on, to out[0 … count). The view is
// bf16 or fp32 and holds them.
inline void WidenRun(const MatrixView& view, RunStart start, int64_t count, double* out) {
  const int64_t first = view.IndexOf(start.row, start.col);
  const int64_t step = view.transposed ? view.ld : 1;
  if (view.dtype == DType::kBf16) {
    const Bf16* in = static_cast<const Bf16*>(view.data) + first;
    for (int64_t i = 0; i < count; ++i) out[i] = ToFloat(in[i * step]);
  } else {
    const float* in = static_cast<const float*>(view.data) + first;
    for (int64_t i = 0; i < count; ++i) out[i] = in[i * step];
  }
}

// INVALID_ARGUMENT, calling the matrix `name`, unless WidenRun can read the view.
inline absl::Status CheckWidenable(const MatrixView& view, const char* name) {
  if (view.dtype != DType::kBf16 && view.dtype != DType::kFp32) {
    return absl::InvalidArgumentError(absl::StrCat(name, " is ", std::string(DTypeName(view.dtype)),
                                                   "; bf16 and fp32 are supported"));
  }
  if (view.rows < 0 || view.cols < 0 || view.ld < view.cols) {
    return absl::InvalidArgumentError(absl::StrCat(name, " is ", view.rows, "x", view.cols,
                                                   " with ld ", view.ld,
                                                   "; dimensions must be >= 0 and ld >= cols"));
  }
  return absl::OkStatus();
}

}  // namespace tcgemm

#endif  // TCGEMM_MATRIX_WIDEN_H_
