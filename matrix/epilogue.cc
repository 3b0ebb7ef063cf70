#include "matrix/epilogue.h"

#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "matrix/dtype.h"

namespace tcgemm {
namespace {

absl::Status CheckFinite(const char* name, float value) {
  if (std::isfinite(value)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name, " is ", value, "; it must be finite"));
}

absl::Status CheckAddend(const char* name, const MatrixView& view) {
  if (view.dtype != DType::kBf16 && view.dtype != DType::kFp32) {
    return absl::InvalidArgumentError(absl::StrCat(
        name, ".dtype is ", std::string(DTypeName(view.dtype)), "; it must be bf16 or fp32"));
  }
  if (!view.transposed) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, ".transposed is true; it must be false: ", name, " is stored as D is"));
}

// The view of rows [first, first + count).
MatrixView RowsOf(MatrixView view, int64_t first, int64_t count) {
  view.data = static_cast<const char*>(view.data) +
              first * view.ld * static_cast<int64_t>(DTypeSize(view.dtype));
  view.rows = count;
  return view;
}

}  // namespace

absl::Status ValidateEpilogue(const Epilogue& epilogue, const EpilogueShape& d) {
  TCGEMM_RETURN_IF_ERROR(CheckFinite("alpha", epilogue.alpha));
  TCGEMM_RETURN_IF_ERROR(CheckFinite("beta", epilogue.beta));
  if (static_cast<int>(epilogue.activation) > static_cast<int>(Activation::kSilu)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "activation is ", static_cast<int>(epilogue.activation), "; it must be from 0 to 3"));
  }
  if (epilogue.reads_c()) {
    const MatrixView& c = epilogue.c;
    TCGEMM_RETURN_IF_ERROR(CheckAddend("c", c));
    if (c.rows != d.m || c.cols != d.n) {
      return absl::InvalidArgumentError(absl::StrCat("c is ", c.rows, "x", c.cols, ", D is ", d.m,
                                                     "x", d.n, "; they must be equal, as beta is ",
                                                     epilogue.beta));
    }
  }
  if (epilogue.has_bias()) {
    const MatrixView& bias = epilogue.bias;
    TCGEMM_RETURN_IF_ERROR(CheckAddend("bias", bias));
    const bool row = bias.rows == 1 && bias.cols == d.n;
    const bool column = bias.rows == d.m && bias.cols == 1;
    if (!row && !column) {
      return absl::InvalidArgumentError(
          absl::StrCat("bias is ", bias.rows, "x", bias.cols, ", D is ", d.m, "x", d.n,
                       "; bias must be a row, 1x", d.n, ", or a column, ", d.m, "x1"));
    }
  }
  return absl::OkStatus();
}

Epilogue EpilogueOfRows(const Epilogue& epilogue, const EpilogueShape& d, int64_t first_row,
                        int64_t rows) {
  Epilogue part = epilogue;
  if (epilogue.reads_c()) part.c = RowsOf(epilogue.c, first_row, rows);
  if (epilogue.has_bias() && BiasIsColumn(epilogue.bias, d)) {
    part.bias = RowsOf(epilogue.bias, first_row, rows);
  }
  return part;
}

}  // namespace tcgemm
