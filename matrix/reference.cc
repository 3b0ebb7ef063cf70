#include "matrix/reference.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "matrix/epilogue_bound.h"
#include "matrix/rounding.h"
#include "matrix/widen.h"

namespace tcgemm {
namespace {

// Columns of B widened at a time: 64 doubles of each of the three running sums stay in L1.
constexpr int64_t kTile = 64;

// The k16 blocks that a Tensor Core adds in one step; the walk of the accumulator is sampled there.
constexpr int64_t kBlock = kBoundBlock;

struct Sums {
  double exact[kTile];
  double abs_sum[kTile];
  double prefix_abs[kTile];
};

// One k16 block of one row: a holds 16 elements, b 16 rows of kTile. Constant trip counts and no
// aliasing let gcc -O2 use vectors; four k at a time spare three of four trips to the sums.
void AddBlock(const double* __restrict a, const double* __restrict b, Sums& __restrict sums) {
  for (int64_t j = 0; j < kTile; ++j) sums.prefix_abs[j] += std::abs(sums.exact[j]);
  for (int64_t k = 0; k < kBlock; k += 4) {
    const double* __restrict b0 = b + k * kTile;
    const double* __restrict b1 = b0 + kTile;
    const double* __restrict b2 = b1 + kTile;
    const double* __restrict b3 = b2 + kTile;
    const double a0 = a[k], a1 = a[k + 1], a2 = a[k + 2], a3 = a[k + 3];
    for (int64_t j = 0; j < kTile; ++j) {
      const double p0 = a0 * b0[j], p1 = a1 * b1[j], p2 = a2 * b2[j], p3 = a3 * b3[j];
      sums.exact[j] = sums.exact[j] + p0 + p1 + p2 + p3;
      sums.abs_sum[j] =
          sums.abs_sum[j] + ((std::abs(p0) + std::abs(p1)) + (std::abs(p2) + std::abs(p3)));
    }
  }
}

// Columns [first_col, first_col + kTile) of op(B) as padded_k × kTile doubles, zero outside.
void PackColumns(const MatrixView& b, int64_t first_col, std::vector<double>& panel) {
  const int64_t cols = std::min(kTile, b.op_cols() - first_col);
  if (cols < kTile) std::fill(panel.begin(), panel.end(), 0.0);
  for (int64_t k = 0; k < b.op_rows(); ++k) {
    WidenRun(b, {.row = k, .col = first_col}, cols, panel.data() + k * kTile);
  }
}

absl::Status CheckOperands(const MatrixView& a, const MatrixView& b) {
  TCGEMM_RETURN_IF_ERROR(CheckWidenable(a, "A"));
  TCGEMM_RETURN_IF_ERROR(CheckWidenable(b, "B"));
  if (a.op_cols() != b.op_rows()) {
    return absl::InvalidArgumentError(absl::StrCat("inner dimensions differ: op(A) is ",
                                                   a.op_rows(), "x", a.op_cols(), ", op(B) is ",
                                                   b.op_rows(), "x", b.op_cols()));
  }
  return absl::OkStatus();
}

double LargestFinite(DType output) {
  return output == DType::kBf16 ? 0x1.fep127 : std::numeric_limits<float>::max();
}

// Half an ulp of what is written, where it is rounded once more.
double OutputRounding(const ValueWithError& value, DType output) {
  return output == DType::kBf16 ? HalfUlpBf16(std::abs(value.exact) + value.error) : 0;
}

ValueWithError ProductOf(const ReferenceElement& element, int64_t k) {
  const double error = AccumulationBound(element.prefix_abs + element.abs_sum, k);
  // An Inf among the operands is no overflow.
  const double largest = std::isfinite(element.exact) ? element.abs_sum + error : 0;
  return {.exact = element.exact, .error = error, .largest = largest};
}

// |value − exact| / bound, or what IEEE's special values make of it.
double ErrorRatio(double value, const ValueWithError& expected, DType output, bool activated) {
  constexpr double kWrong = std::numeric_limits<double>::infinity();
  if (expected.largest > std::numeric_limits<float>::max() &&
      (activated || !std::isfinite(value))) {
    return 0;
  }
  if (std::isnan(expected.exact)) return std::isnan(value) ? 0 : kWrong;
  if (std::isinf(expected.exact)) return value == expected.exact ? 0 : kWrong;
  const double bound = expected.error + OutputRounding(expected, output);
  if (!std::isfinite(value)) {
    const bool overflows = std::abs(expected.exact) + bound > LargestFinite(output);
    const bool right_sign = std::signbit(value) == std::signbit(expected.exact);
    return !std::isnan(value) && overflows && right_sign ? 0 : kWrong;
  }
  const double error = std::abs(value - expected.exact);
  return error == 0 ? 0 : error / bound;
}

// C and the bias of D's rows, widened, one row at a time.
class EpilogueRows {
 public:
  EpilogueRows(const Epilogue& epilogue, const EpilogueShape& d)
      : epilogue_(epilogue),
        c_(epilogue.reads_c() ? d.n : 0),
        bias_(epilogue.has_bias() ? d.n : 0) {
    terms_ = {.alpha = epilogue.alpha,
              .beta = epilogue.beta,
              .has_bias = epilogue.has_bias(),
              .activation = epilogue.activation};
    column_bias_ = epilogue.has_bias() && BiasIsColumn(epilogue.bias, d);
    if (terms_.has_bias && !column_bias_) WidenRun(epilogue.bias, {}, d.n, bias_.data());
  }

  void GoTo(int64_t row) {
    if (!c_.empty()) WidenRun(epilogue_.c, {.row = row}, epilogue_.c.cols, c_.data());
    if (!column_bias_) return;
    double value;
    WidenRun(epilogue_.bias, {.row = row}, 1, &value);
    std::fill(bias_.begin(), bias_.end(), value);
  }

  ValueWithError Apply(const ValueWithError& product, int64_t column) {
    if (epilogue_.is_default()) return product;
    if (!c_.empty()) terms_.c = c_[column];
    if (!bias_.empty()) terms_.bias = bias_[column];
    return ApplyEpilogue(product, terms_);
  }

 private:
  const Epilogue& epilogue_;
  EpilogueTerms terms_;
  bool column_bias_ = false;
  std::vector<double> c_;
  std::vector<double> bias_;
};

}  // namespace

absl::StatusOr<Reference> ComputeReference(const MatrixView& a, const MatrixView& b) {
  std::vector<int64_t> rows(std::max<int64_t>(0, a.op_rows()));
  std::iota(rows.begin(), rows.end(), 0);
  return ComputeReferenceRows(a, b, rows);
}

absl::StatusOr<Reference> ComputeReferenceRows(const MatrixView& a, const MatrixView& b,
                                               const std::vector<int64_t>& rows) {
  TCGEMM_RETURN_IF_ERROR(CheckOperands(a, b));
  for (int64_t row : rows) {
    if (row < 0 || row >= a.op_rows()) {
      return absl::InvalidArgumentError(
          absl::StrCat("row ", row, " is not one of the ", a.op_rows(), " rows of op(A)"));
    }
  }
  Reference reference{.m = static_cast<int64_t>(rows.size()), .n = b.op_cols(), .k = a.op_cols()};
  reference.elements.resize(reference.m * reference.n);
  // Zero-filled tails: a block of zeros changes no sum.
  const int64_t padded_k = (reference.k + kBlock - 1) / kBlock * kBlock;
  std::vector<double> panel(padded_k * kTile);
  std::vector<double> row_of_a(padded_k);
  for (int64_t j0 = 0; j0 < reference.n; j0 += kTile) {
    PackColumns(b, j0, panel);
    for (int64_t i = 0; i < reference.m; ++i) {
      WidenRun(a, {.row = rows[i], .col = 0}, reference.k, row_of_a.data());
      Sums sums{};
      for (int64_t k = 0; k < padded_k; k += kBlock) {
        AddBlock(row_of_a.data() + k, panel.data() + k * kTile, sums);
      }
      ReferenceElement* out = reference.elements.data() + i * reference.n + j0;
      for (int64_t j = 0; j < std::min(kTile, reference.n - j0); ++j) {
        out[j] = {
            .exact = sums.exact[j], .abs_sum = sums.abs_sum[j], .prefix_abs = sums.prefix_abs[j]};
      }
    }
  }
  return reference;
}

// Why the bound holds, and why it is no larger.
//
// The textbook bound k·2^-24·Σ|a·b| is for data that nobody has: for random data it exceeds the
// error a thousandfold and would let a missing element pass. Most of it pays for partial sums as
// large as Σ|a·b|; but the reference sees the partial sums, so we charge each step for what the
// accumulator really held (a running error analysis: N. Higham, "Accuracy and Stability of
// Numerical Algorithms", 2nd ed., 3.3). The worst case stays covered: where every product has one
// sign, the partial sums are large, and the bound grows to the textbook's.
//
// Let u = 2^-24, p_t the exact sum before k16 block t, s_t = Σ|a·b| in that block. Every
// intermediate result inside block t is at most h_t = |p_t| + s_t (plus the error so far). The
// product of two bf16 is exact in fp32. Claim: block t adds at most 20·u·h_t of error.
//  1. Tensor Cores (matrix/reference_test.cc emulates them; behaviour: F. Khattak and M. Mikaitis,
//     "Accurate Models of NVIDIA Tensor Cores", arXiv:2512.07004). A step aligns the accumulator
//     and its products to the largest exponent, keeps g bits beyond fp32's 23, cuts off the rest,
//     adds exactly, and truncates the sum. The largest term loses nothing, each other one less than
//     2^-(23+g)·h_t, the sum less than 2^-23·h_t. Hopper: 16 products, g = 2: (16/4 + 1)·2u = 10u.
//     Ampere and Ada take two steps of 8 products with g = 1: 2·(8/2 + 1)·2u = 20u.
//  2. An fp32 chain in K order, rounded to nearest: 16 sums, u·h_t each: 16u. Pairs
//     (vdpbf16ps), or any order inside the block: no more. Where products of fp32 operands
//     round too, they add u·s_t: 17u.
// Errors so far make later partial sums larger by as much: e_T ≤ 20u·Σ(h_t + e_t) gives a factor
// of at most exp(20u·k/16) ≤ 1 + 2·k·u for k ≤ 2^23. Σh_t = prefix_abs + abs_sum.
// What underflows is absolute: flushing one sum or product to zero loses < 2^-126 and there are
// two per k. (Flushing *operands* that are subnormal is not covered: it is a wrong product.)
// The reference itself is off by k·2^-53·abs_sum, in the slack between 17 or 20 and the real loss.
// bf16 output rounds once more: half an ulp of the binade that |exact| + error reaches.
//
// Other orders (a library that restarts the accumulator every few hundred k, or sums in lanes):
// their partial sums are not ours, and contrived data (a huge pair that cancels astride such a
// restart) exceeds this bound. They round to nearest, so elsewhere errors average out, far inside
// it; reference_test.cc tries both on every kind of data. The bound that holds for them on all
// data, Σ_k |a·b|·(blocks from k on)·20u, is matrix/freivalds.cc's.
//
// How tight: for normal data and K = 4096 the bound is 87·u·Σ|a·b| on average, where an H200 was
// seen at 20.8 and the textbook says 4096. A lost element of A is seen in 95 of 100 elements of D
// there (99 at K = 1024), a lost k16 step in 997.
double ErrorBound(const ReferenceElement& element, int64_t k, DType output) {
  const ValueWithError product = ProductOf(element, k);
  return product.error + OutputRounding(product, output);
}

absl::StatusOr<Comparison> CompareWithReference(const MatrixView& d, const Reference& reference,
                                                const Epilogue& epilogue) {
  TCGEMM_RETURN_IF_ERROR(CheckWidenable(d, "D"));
  if (d.transposed || d.rows != reference.m || d.cols != reference.n) {
    return absl::InvalidArgumentError(
        absl::StrCat("D is ", d.rows, "x", d.cols, d.transposed ? " transposed" : "", "; expected ",
                     reference.m, "x", reference.n, ", not transposed"));
  }
  const EpilogueShape shape = {.m = reference.m, .n = reference.n};
  TCGEMM_RETURN_IF_ERROR(ValidateEpilogue(epilogue, shape));
  EpilogueRows rows(epilogue, shape);
  const bool activated = epilogue.activation != Activation::kNone;
  Comparison comparison{.ok = true};
  comparison.max_error_ratio = -1;  // so that the first element is always recorded
  std::vector<double> row(d.cols);
  for (int64_t i = 0; i < d.rows; ++i) {
    WidenRun(d, {.row = i, .col = 0}, d.cols, row.data());
    rows.GoTo(i);
    for (int64_t j = 0; j < d.cols; ++j) {
      const ValueWithError expected = rows.Apply(ProductOf(reference.at(i, j), reference.k), j);
      const double ratio = ErrorRatio(row[j], expected, d.dtype, activated);
      if (ratio <= comparison.max_error_ratio) continue;
      comparison = {.ok = ratio <= 1,
                    .max_error_ratio = ratio,
                    .worst_row = i,
                    .worst_col = j,
                    .worst_value = row[j],
                    .worst_exact = expected.exact,
                    .worst_bound = expected.error + OutputRounding(expected, d.dtype)};
    }
  }
  comparison.max_error_ratio = std::max(0.0, comparison.max_error_ratio);
  return comparison;
}

std::string Comparison::ToString() const {
  return absl::StrFormat("D[%d,%d] = %.9g %s the exact value is %.9g ± %.3g", worst_row, worst_col,
                         worst_value, ok ? "and" : "but", worst_exact, worst_bound);
}

}  // namespace tcgemm
