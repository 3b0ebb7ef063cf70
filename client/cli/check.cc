#include "client/cli/check.h"

#include <algorithm>
#include <random>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "matrix/freivalds.h"
#include "matrix/reference.h"

namespace tcgemm::client {
namespace {

constexpr double kFullReferenceProducts = 2147483648.0;
constexpr int64_t kSampledRows = 8;

std::string ShapeText(const MatrixView& m) { return absl::StrCat(m.op_rows(), "x", m.op_cols()); }

absl::Status CheckShapes(const MatrixView& a, const MatrixView& b, const MatrixView& d,
                         const Epilogue& epilogue) {
  if (a.op_cols() != b.op_rows()) {
    return absl::InvalidArgumentError(absl::StrCat("inner dimensions differ: op(A) is ",
                                                   ShapeText(a), ", op(B) is ", ShapeText(b)));
  }
  if (d.op_rows() != a.op_rows() || d.op_cols() != b.op_cols()) {
    return absl::InvalidArgumentError(absl::StrCat("D is ", ShapeText(d), ", but op(A)·op(B) is ",
                                                   a.op_rows(), "x", b.op_cols()));
  }
  return ValidateEpilogue(epilogue, {.m = d.op_rows(), .n = d.op_cols()});
}

absl::StatusOr<Proof> ProveEveryElement(const MatrixView& a, const MatrixView& b,
                                        const MatrixView& d, const Epilogue& epilogue) {
  TCGEMM_ASSIGN_OR_RETURN(const Reference reference, ComputeReference(a, b));
  TCGEMM_ASSIGN_OR_RETURN(const Comparison comparison,
                          CompareWithReference(d, reference, epilogue));
  return Proof{.ok = comparison.ok,
               .max_error_ratio = comparison.max_error_ratio,
               .text = absl::StrCat("every element against float64: ", comparison.ToString())};
}

// Distinct rows, the first and the last and up to `count` others.
std::vector<int64_t> SomeRows(int64_t m, int64_t count) {
  std::vector<int64_t> rows = {0, m - 1};
  std::mt19937_64 random(std::random_device{}());
  for (int64_t i = 0; i < count; ++i) {
    rows.push_back(static_cast<int64_t>(random() % static_cast<uint64_t>(m)));
  }
  std::sort(rows.begin(), rows.end());
  rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
  return rows;
}

// The rows of D as one view each, compared with the reference of the same rows.
absl::StatusOr<Proof> ProveSomeRows(const MatrixView& a, const MatrixView& b, const MatrixView& d,
                                    const Epilogue& epilogue, int64_t count) {
  const std::vector<int64_t> rows = SomeRows(d.rows, count);
  const EpilogueShape shape = {.m = d.rows, .n = d.cols};
  TCGEMM_ASSIGN_OR_RETURN(const Reference all, ComputeReferenceRows(a, b, rows));
  Proof proof{.ok = true};
  for (size_t i = 0; i < rows.size(); ++i) {
    Reference one = {.m = 1, .n = all.n, .k = all.k};
    const auto begin = all.elements.begin() + static_cast<int64_t>(i) * all.n;
    one.elements.assign(begin, begin + all.n);
    MatrixView row = d;
    row.rows = 1;
    row.data =
        static_cast<const char*>(d.data) + static_cast<size_t>(rows[i] * d.ld) * DTypeSize(d.dtype);
    TCGEMM_ASSIGN_OR_RETURN(
        const Comparison comparison,
        CompareWithReference(row, one, EpilogueOfRows(epilogue, shape, rows[i], 1)));
    if (comparison.max_error_ratio >= proof.max_error_ratio) {
      proof.max_error_ratio = comparison.max_error_ratio;
      proof.text = absl::StrCat("row ", rows[i], ": ", comparison.ToString());
    }
    proof.ok = proof.ok && comparison.ok;
  }
  return proof;
}

absl::StatusOr<Proof> ProveLarge(const MatrixView& a, const MatrixView& b, const MatrixView& d) {
  // Whoever made D must not know the vectors.
  const FreivaldsOptions options = {.seed = std::random_device{}()};
  TCGEMM_ASSIGN_OR_RETURN(const FreivaldsResult freivalds, CheckFreivalds(a, b, d, options));
  TCGEMM_ASSIGN_OR_RETURN(const Proof rows, ProveSomeRows(a, b, d, {}, kSampledRows));
  return Proof{
      .ok = freivalds.ok && rows.ok,
      .max_error_ratio = std::max(freivalds.max_error_ratio, rows.max_error_ratio),
      .text = absl::StrCat(
          "all of D by Freivalds' method, ", options.rounds, " rounds: error/bound ",
          freivalds.max_error_ratio, " (row ", freivalds.worst_row, ", ", freivalds.skipped_rows,
          " rows with NaN or Inf left out); whole rows against float64: ", rows.text)};
}

absl::StatusOr<Proof> ProveLargeWithEpilogue(const MatrixView& a, const MatrixView& b,
                                             const MatrixView& d, const Epilogue& epilogue) {
  const double row = static_cast<double>(b.op_cols()) * static_cast<double>(a.op_cols());
  const auto count = std::max(kSampledRows, static_cast<int64_t>(kFullReferenceProducts / row));
  TCGEMM_ASSIGN_OR_RETURN(Proof rows, ProveSomeRows(a, b, d, epilogue, count));
  rows.text = absl::StrCat("about ", count, " of ", d.rows, " rows against float64: ", rows.text);
  return rows;
}

}  // namespace

absl::StatusOr<Proof> Prove(const MatrixView& a, const MatrixView& b, const MatrixView& d,
                            const Epilogue& epilogue) {
  TCGEMM_RETURN_IF_ERROR(CheckShapes(a, b, d, epilogue));
  const double products = static_cast<double>(a.op_rows()) * static_cast<double>(b.op_cols()) *
                          static_cast<double>(a.op_cols());
  if (products <= kFullReferenceProducts) return ProveEveryElement(a, b, d, epilogue);
  if (!epilogue.is_default()) return ProveLargeWithEpilogue(a, b, d, epilogue);
  return ProveLarge(a, b, d);
}

}  // namespace tcgemm::client
