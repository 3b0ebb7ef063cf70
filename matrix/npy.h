// NumPy's .npy files (format 1.0 … 3.0), 2-D (a 1-D array of n is read as 1×n), fp32 and bf16.
//
// Source: numpy.lib.format. Types: '<f4'; '<V2' and '|V2' as bf16 (what ml_dtypes writes); '<u2' as
// bf16 only when asked for. Fortran order is read as a transposed view, without a copy.
#ifndef TCGEMM_MATRIX_NPY_H_
#define TCGEMM_MATRIX_NPY_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "matrix/matrix.h"
#include "matrix/matrix_view.h"

namespace tcgemm {

struct NpyOptions {
  bool u2_is_bf16 = false;
  int64_t max_bytes = int64_t{1} << 40;  // of the array
};

// The stored matrix and whether to read it transposed.
struct NpyMatrix {
  Matrix matrix;
  bool fortran_order = false;
  MatrixView view() const { return fortran_order ? matrix.transposed_view() : matrix.view(); }
};

// NOT_FOUND when there is no such file, the code of errno when the system refuses
// (PERMISSION_DENIED, …); INVALID_ARGUMENT, naming the file, what was found and what is supported,
// for anything else that is not such an array (truncated, trailing bytes, objects, other types,
// more dimensions, absurd header).
absl::StatusOr<NpyMatrix> ReadNpy(const std::string& path, const NpyOptions& options);

// Writes '<V2' (bf16) or '<f4', C order, of op(view): a temporary file beside it, then a rename, so
// a reader never sees half a file. INVALID_ARGUMENT for other types; the code of errno, naming the
// file, when it cannot be written, and then nothing is left behind.
absl::Status WriteNpy(const std::string& path, const MatrixView& view);

// The same matrix in bf16 (from bf16 or fp32), dense, op applied: fp32 rounds to nearest even.
Matrix ToBf16Matrix(const MatrixView& view);

}  // namespace tcgemm

#endif  // TCGEMM_MATRIX_NPY_H_
