// A matrix in a file, whatever the format: .safetensors by its name (matrix/safetensors.h),
// anything else is .npy (matrix/npy.h). What these headers say of errors holds here.
#ifndef TCGEMM_MATRIX_MATRIX_FILE_H_
#define TCGEMM_MATRIX_MATRIX_FILE_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "matrix/npy.h"

namespace tcgemm {

// `path`: FILE.npy, FILE.safetensors or FILE.safetensors:TENSOR. A .safetensors file is never in
// Fortran order; options.u2_is_bf16 does not concern it.
absl::StatusOr<NpyMatrix> ReadMatrixFile(const std::string& path, const NpyOptions& options);
absl::Status WriteMatrixFile(const std::string& path, const MatrixView& view);

// `path` without ":TENSOR".
std::string FileOf(const std::string& path);

}  // namespace tcgemm

#endif  // TCGEMM_MATRIX_MATRIX_FILE_H_
