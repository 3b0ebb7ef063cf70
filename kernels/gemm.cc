#include "kernels/gemm.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "matrix/dtype.h"
#include "matrix/matrix_view.h"

namespace tcgemm {
namespace {

// Shape, ld and span of one matrix. Multiplications are checked: dimensions come from the wire.
absl::Status ValidateView(absl::string_view name, const MatrixView& view) {
  if (view.rows < 0 || view.cols < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, " is ", view.rows, "x", view.cols, "; a dimension must be at least 0"));
  }
  const int64_t least_ld = std::max<int64_t>(1, view.cols);
  if (view.ld < least_ld) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ".ld is ", view.ld, "; it must be at least ", least_ld));
  }
  if (view.rows == 0 || view.cols == 0) return absl::OkStatus();
  int64_t elements;
  int64_t bytes;
  if (__builtin_mul_overflow(view.rows - 1, view.ld, &elements) ||
      __builtin_add_overflow(elements, view.cols, &elements) ||
      __builtin_mul_overflow(elements, static_cast<int64_t>(DTypeSize(view.dtype)), &bytes)) {
    return absl::InvalidArgumentError(absl::StrCat(name, " of ", view.rows, " rows with ld ",
                                                   view.ld, " spans more than ",
                                                   std::numeric_limits<int64_t>::max(), " bytes"));
  }
  if (view.data == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ".data is null; it must point to ", bytes, " bytes"));
  }
  return absl::OkStatus();
}

absl::Status ValidateTypes(const GemmProblem& problem) {
  for (const auto& [name, view] : {std::pair("a", problem.a), std::pair("b", problem.b)}) {
    if (view.dtype != DType::kBf16) {
      return absl::InvalidArgumentError(absl::StrCat(
          name, ".dtype is ", std::string(DTypeName(view.dtype)), "; it must be bf16"));
    }
  }
  if (problem.d.dtype != DType::kBf16 && problem.d.dtype != DType::kFp32) {
    return absl::InvalidArgumentError(absl::StrCat(
        "d.dtype is ", std::string(DTypeName(problem.d.dtype)), "; it must be bf16 or fp32"));
  }
  if (problem.d.transposed) return absl::InvalidArgumentError("d.transposed must be false");
  return absl::OkStatus();
}

}  // namespace

std::string GemmShape::ToString() const { return absl::StrCat(m, "x", n, "x", k); }

absl::Status ValidateProblem(const GemmProblem& problem) {
  TCGEMM_RETURN_IF_ERROR(ValidateTypes(problem));
  TCGEMM_RETURN_IF_ERROR(ValidateView("a", problem.a));
  TCGEMM_RETURN_IF_ERROR(ValidateView("b", problem.b));
  TCGEMM_RETURN_IF_ERROR(ValidateView("d", AsConst(problem.d)));
  if (problem.a.op_cols() != problem.b.op_rows()) {
    return absl::InvalidArgumentError(absl::StrCat("op(a) has ", problem.a.op_cols(),
                                                   " columns but op(b) has ", problem.b.op_rows(),
                                                   " rows; they must be equal"));
  }
  const GemmShape shape = problem.shape();
  if (problem.d.rows != shape.m || problem.d.cols != shape.n) {
    return absl::InvalidArgumentError(absl::StrCat("d is ", problem.d.rows, "x", problem.d.cols,
                                                   "; it must be ", shape.m, "x", shape.n));
  }
  const Epilogue& epilogue = problem.epilogue;
  TCGEMM_RETURN_IF_ERROR(ValidateEpilogue(epilogue, {.m = shape.m, .n = shape.n}));
  if (epilogue.reads_c()) TCGEMM_RETURN_IF_ERROR(ValidateView("c", epilogue.c));
  if (epilogue.has_bias()) TCGEMM_RETURN_IF_ERROR(ValidateView("bias", epilogue.bias));
  return absl::OkStatus();
}

std::string LayoutName(const GemmProblem& problem) {
  return absl::StrCat(problem.a.transposed ? "T" : "N", problem.b.transposed ? "T" : "N");
}

}  // namespace tcgemm
