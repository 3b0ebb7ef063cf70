// The flags of an epilogue, and what they name.
#ifndef TCGEMM_CLIENT_CLI_EPILOGUE_FLAGS_H_
#define TCGEMM_CLIENT_CLI_EPILOGUE_FLAGS_H_

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "matrix/epilogue.h"
#include "matrix/matrix.h"

namespace tcgemm::client {

struct EpilogueFlags {
  float alpha = 1;
  std::optional<float> beta;  // default: 1 where C is given, else 0
  std::string c;              // a file, or @HANDLE where the server has resident matrices
  std::string bias;           // the same
  std::string bias_axis = "auto";
  std::string activation = "none";

  float beta_or_default() const { return beta.value_or(c.empty() ? 0.0f : 1.0f); }
  bool given() const;
};

// "none", "relu", "gelu", "silu": one of these.
Activation ActivationOf(const std::string& name);

// An epilogue and the memory of its operands. Move-only.
struct LoadedEpilogue {
  Matrix c;
  Matrix bias;
  Epilogue epilogue;  // views of both
};

// C and bias as their files have them, bf16 or fp32 (nothing is rounded), for a D of this shape.
// bias_axis "auto" takes an array of N elements as a row, of M as a column, and a row where both
// fit; "row" and "column" say so whatever its shape. INVALID_ARGUMENT, naming the file or the flag,
// when one cannot be read, names a resident matrix, or does not fit.
absl::StatusOr<LoadedEpilogue> LoadEpilogue(const EpilogueFlags& flags, const EpilogueShape& d,
                                            bool u2_is_bf16);
// One of the two operands, and the bias turned the way of `axis` where that is "row" or "column".
absl::StatusOr<Matrix> LoadAddend(const std::string& path, bool u2_is_bf16);
absl::Status TurnBias(Matrix& bias, const std::string& axis);

}  // namespace tcgemm::client

#endif  // TCGEMM_CLIENT_CLI_EPILOGUE_FLAGS_H_
