#include "client/cli/epilogue_flags.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "matrix/matrix_file.h"
#include "matrix/npy.h"

namespace tcgemm::client {
namespace {

bool IsHandle(const std::string& text) { return text.rfind('@', 0) == 0; }

// In C order, whatever the order of the file.
Matrix Dense(NpyMatrix file) {
  if (!file.fortran_order) return std::move(file.matrix);
  if (file.matrix.dtype() == DType::kBf16) return ToBf16Matrix(file.view());
  const MatrixView view = file.view();
  Matrix dense(view.op_rows(), view.op_cols(), view.dtype);
  for (int64_t i = 0; i < dense.rows(); ++i) {
    for (int64_t j = 0; j < dense.cols(); ++j) {
      dense.data<float>()[i * dense.cols() + j] =
          static_cast<const float*>(view.data)[view.IndexOf(i, j)];
    }
  }
  return dense;
}

// The same elements as rows × cols, of which one is 1.
Matrix Reshaped(const Matrix& vector, int64_t rows, int64_t cols) {
  Matrix reshaped(rows, cols, vector.dtype());
  std::memcpy(reshaped.data<char>(), vector.data<char>(), vector.bytes());
  return reshaped;
}

std::string ChooseAxis(const EpilogueFlags& flags, const Matrix& bias, const EpilogueShape& d) {
  if (flags.bias_axis != "auto") return flags.bias_axis;
  const int64_t count = bias.rows() * bias.cols();
  return count == d.m && count != d.n ? "column" : "row";
}

}  // namespace

bool EpilogueFlags::given() const {
  return alpha != 1 || beta.has_value() || !c.empty() || !bias.empty() || activation != "none";
}

Activation ActivationOf(const std::string& name) {
  for (const Activation activation : {Activation::kRelu, Activation::kGelu, Activation::kSilu}) {
    if (name == ActivationName(activation)) return activation;
  }
  return Activation::kNone;
}

absl::StatusOr<Matrix> LoadAddend(const std::string& path, bool u2_is_bf16) {
  if (IsHandle(path)) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is resident: it must be a file here"));
  }
  TCGEMM_ASSIGN_OR_RETURN(NpyMatrix file, ReadMatrixFile(path, {.u2_is_bf16 = u2_is_bf16}));
  return Dense(std::move(file));
}

absl::Status TurnBias(Matrix& bias, const std::string& axis) {
  if (bias.rows() != 1 && bias.cols() != 1) {
    return absl::InvalidArgumentError(absl::StrCat("the bias is ", bias.rows(), "x", bias.cols(),
                                                   "; it must be one row or one column"));
  }
  const int64_t count = bias.rows() * bias.cols();
  bias = axis == "column" ? Reshaped(bias, count, 1) : Reshaped(bias, 1, count);
  return absl::OkStatus();
}

absl::StatusOr<LoadedEpilogue> LoadEpilogue(const EpilogueFlags& flags, const EpilogueShape& d,
                                            bool u2_is_bf16) {
  LoadedEpilogue loaded;
  loaded.epilogue.alpha = flags.alpha;
  loaded.epilogue.beta = flags.beta_or_default();
  loaded.epilogue.activation = ActivationOf(flags.activation);
  if (!flags.c.empty()) {
    TCGEMM_ASSIGN_OR_RETURN(loaded.c, LoadAddend(flags.c, u2_is_bf16));
    loaded.epilogue.c = loaded.c.view();
  } else if (loaded.epilogue.reads_c()) {
    return absl::InvalidArgumentError("--beta needs --c");
  }
  if (!flags.bias.empty()) {
    TCGEMM_ASSIGN_OR_RETURN(loaded.bias, LoadAddend(flags.bias, u2_is_bf16));
    TCGEMM_RETURN_IF_ERROR(TurnBias(loaded.bias, ChooseAxis(flags, loaded.bias, d)));
    loaded.epilogue.bias = loaded.bias.view();
  }
  TCGEMM_RETURN_IF_ERROR(ValidateEpilogue(loaded.epilogue, d));
  return loaded;
}

}  // namespace tcgemm::client
