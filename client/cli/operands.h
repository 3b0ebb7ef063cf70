// The matrices that a command line names.
#ifndef TCGEMM_CLIENT_CLI_OPERANDS_H_
#define TCGEMM_CLIENT_CLI_OPERANDS_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "matrix/matrix.h"
#include "matrix/matrix_view.h"

namespace tcgemm::client {

struct Operand {
  Matrix storage;
  MatrixView view;       // of storage
  bool rounded = false;  // the file held fp32
};

struct OperandOptions {
  bool transpose = false;
  bool u2_is_bf16 = false;
};

// A bf16 operand from a .npy file; fp32 is rounded. ReadNpy's errors; INVALID_ARGUMENT for an empty
// matrix.
absl::StatusOr<Operand> ReadOperand(const std::string& path, const OperandOptions& options);

// D as it lies in a .npy file, bf16 or fp32, in C order.
absl::StatusOr<Matrix> ReadResult(const std::string& path, bool u2_is_bf16);

struct ProductShape {
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
};

// "MxNxK", each 1 to 2^31 − 1. INVALID_ARGUMENT otherwise.
absl::StatusOr<ProductShape> ParseProductShape(absl::string_view text);

// Standard normals of `rows` × `cols` as op() gives them.
Operand RandomOperand(int64_t rows, int64_t cols, bool transpose, uint64_t seed);

// Both name the same file, whether or not it exists yet.
bool SameFile(const std::string& a, const std::string& b);

}  // namespace tcgemm::client

#endif  // TCGEMM_CLIENT_CLI_OPERANDS_H_
