// The header of a .npy file: a Python dict literal. Internal to matrix/npy.cc.
#ifndef TCGEMM_MATRIX_NPY_HEADER_H_
#define TCGEMM_MATRIX_NPY_HEADER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tcgemm {

struct NpyHeader {
  std::string descr;  // "<f4"; a structured type is refused
  bool fortran_order = false;
  std::vector<int64_t> shape;  // each ≥ 0
};

// Parses the literal: exactly the keys 'descr', 'fortran_order' and 'shape', once each, in any
// order. INVALID_ARGUMENT says what was expected and where; it does not know the file.
absl::StatusOr<NpyHeader> ParseNpyHeader(absl::string_view text);

// The whole start of a file, magic included, for a C-order array: a multiple of 64 bytes.
std::string MakeNpyHeader(absl::string_view descr, int64_t rows, int64_t cols);

}  // namespace tcgemm

#endif  // TCGEMM_MATRIX_NPY_HEADER_H_
