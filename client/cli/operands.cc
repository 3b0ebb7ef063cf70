#include "client/cli/operands.h"

#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "matrix/npy.h"

namespace tcgemm::client {
namespace {

template <typename T>
Matrix TransposedCopy(const Matrix& stored) {
  Matrix copy(stored.cols(), stored.rows(), stored.dtype());
  for (int64_t i = 0; i < stored.rows(); ++i) {
    for (int64_t j = 0; j < stored.cols(); ++j) {
      copy.data<T>()[j * stored.rows() + i] = stored.data<T>()[i * stored.ld() + j];
    }
  }
  return copy;
}

absl::StatusOr<NpyMatrix> ReadNonEmpty(const std::string& path, bool u2_is_bf16) {
  TCGEMM_ASSIGN_OR_RETURN(NpyMatrix file, ReadNpy(path, {.u2_is_bf16 = u2_is_bf16}));
  if (file.matrix.rows() < 1 || file.matrix.cols() < 1) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": the array is empty"));
  }
  return file;
}

}  // namespace

absl::StatusOr<Operand> ReadOperand(const std::string& path, const OperandOptions& options) {
  TCGEMM_ASSIGN_OR_RETURN(NpyMatrix file, ReadNonEmpty(path, options.u2_is_bf16));
  Operand operand;
  operand.rounded = file.matrix.dtype() == DType::kFp32;
  if (operand.rounded) {
    operand.storage = ToBf16Matrix(file.view());
    operand.view = operand.storage.view();
  } else {
    operand.storage = std::move(file.matrix);
    operand.view = file.fortran_order ? operand.storage.transposed_view() : operand.storage.view();
  }
  operand.view.transposed ^= options.transpose;
  return operand;
}

absl::StatusOr<Matrix> ReadResult(const std::string& path, bool u2_is_bf16) {
  TCGEMM_ASSIGN_OR_RETURN(NpyMatrix file, ReadNonEmpty(path, u2_is_bf16));
  if (!file.fortran_order) return std::move(file.matrix);
  return file.matrix.dtype() == DType::kFp32 ? TransposedCopy<uint32_t>(file.matrix)
                                             : TransposedCopy<uint16_t>(file.matrix);
}

absl::StatusOr<ProductShape> ParseProductShape(absl::string_view text) {
  const std::vector<absl::string_view> parts = absl::StrSplit(text, 'x');
  int64_t sides[3] = {};
  bool ok = parts.size() == 3;
  for (size_t i = 0; ok && i < 3; ++i) {
    // SimpleAtoi alone takes signs and spaces.
    ok = !parts[i].empty() && absl::ascii_isdigit(parts[i].front()) &&
         absl::SimpleAtoi(parts[i], &sides[i]) && sides[i] >= 1 && sides[i] <= INT32_MAX;
  }
  if (!ok) {
    return absl::InvalidArgumentError(absl::StrCat(
        "'", text, "' is not MxNxK with three numbers from 1 to ", INT32_MAX, ": 512x256x1024"));
  }
  return ProductShape{.m = sides[0], .n = sides[1], .k = sides[2]};
}

Operand RandomOperand(int64_t rows, int64_t cols, bool transpose, uint64_t seed) {
  Operand operand;
  operand.storage = transpose ? Matrix(cols, rows, DType::kBf16) : Matrix(rows, cols, DType::kBf16);
  FillNormal(operand.storage, seed);
  operand.view = operand.storage.view();
  operand.view.transposed = transpose;
  return operand;
}

bool SameFile(const std::string& a, const std::string& b) {
  std::error_code error;
  if (std::filesystem::equivalent(a, b, error)) return true;
  const auto absolute = [&error](const std::string& path) {
    return std::filesystem::absolute(path, error).lexically_normal();
  };
  return absolute(a) == absolute(b);
}

}  // namespace tcgemm::client
