#include "matrix/freivalds.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "matrix/rounding.h"
#include "matrix/splitmix.h"
#include "matrix/widen.h"

namespace tcgemm {
namespace {

constexpr int kMaxRounds = 64;

// A right row fails a round with a probability below 2·exp(−kDeviations²/2) = 4e-22.
constexpr double kDeviations = 10;

using Vector = std::vector<double>;

double Identity(double x) { return x; }
double Magnitude(double x) { return std::abs(x); }
double Square(double x) { return x * x; }
double IsNotFinite(double x) { return std::isfinite(x) ? 0 : 1; }

// f(op(matrix))·x, f taken element by element. Walks the matrix as it is stored.
template <typename F>
Vector Multiply(const MatrixView& view, const Vector& x, F f) {
  MatrixView stored = view;
  stored.transposed = false;
  Vector y(view.op_rows());
  Vector row(stored.cols);
  for (int64_t i = 0; i < stored.rows; ++i) {
    WidenRun(stored, {.row = i, .col = 0}, stored.cols, row.data());
    if (view.transposed) {
      for (int64_t j = 0; j < stored.cols; ++j) y[j] += f(row[j]) * x[i];
    } else {
      for (int64_t j = 0; j < stored.cols; ++j) y[i] += f(row[j]) * x[j];
    }
  }
  return y;
}

Vector RandomSigns(int64_t n, uint64_t seed, int round) {
  Vector x(n);
  for (int64_t j = 0; j < n; ++j) {
    const uint64_t bits = RandomBits(seed + static_cast<uint64_t>(round), j / 64);
    x[j] = (bits >> (j % 64)) & 1 ? 1 : -1;
  }
  return x;
}

// How far (D·x)_i may be from (A·B·x)_i, for every row i.
//
// e_ij is the error of D's element. AccumulationBound (derived in reference.cc) needs the partial
// sums, which cost a whole product to know; but a product a_ik·b_kj is held, by the accumulator or
// by its block, in no more than w_k = (blocks from k's on) steps, so |e_ij| ≤ the bound of
// Σ_k w_k·|a_ik·b_kj|. This holds for any order of summation in which a product goes through no
// more than 16·w_k roundings to nearest: lanes and restarted accumulators included.
//
// The row's error is Σ_j x_j·e_ij. It is at most Σ_j |e_ij|. Also, x was drawn without looking at
// e: so by Hoeffding's inequality it exceeds λ·sqrt(Σ_j e_ij²) with probability ≤ 2·exp(−λ²/2).
// That grows with √n, not n, and lets one lost k-step be seen at 4096³. Both norms of the row of
// e follow from those of the rows of B by the triangle inequality: two products with a vector.
Vector RowBounds(const MatrixView& a, const MatrixView& b, const MatrixView& d) {
  const int64_t k = a.op_cols();
  const int64_t n = b.op_cols();
  const Vector ones(n, 1.0);
  Vector norm1 = Multiply(b, ones, Magnitude);
  Vector norm2 = Multiply(b, ones, Square);
  const int64_t blocks = (k + kBoundBlock - 1) / kBoundBlock;
  for (int64_t i = 0; i < k; ++i) {
    const int64_t blocks_left = blocks - i / kBoundBlock;
    const auto steps = static_cast<double>(blocks_left);
    norm1[i] *= steps;
    norm2[i] = steps * std::sqrt(norm2[i]);
  }
  const Vector held1 = Multiply(a, norm1, Magnitude);
  const Vector held2 = Multiply(a, norm2, Magnitude);
  const bool rounded = d.dtype == DType::kBf16;
  // By the value written: the ulp of the rounded value is never less than that of the exact one.
  const auto rounding = [rounded](double x) { return rounded ? HalfUlpBf16(std::abs(x)) : 0.0; };
  const auto rounding_squared = [&](double x) { return Square(rounding(x)); };
  const Vector rounding1 = Multiply(d, ones, rounding);
  const Vector rounding2 = Multiply(d, ones, rounding_squared);
  const Vector d1 = Multiply(d, ones, Magnitude);
  const double elements = static_cast<double>(n);
  Vector bounds(d.op_rows());
  for (size_t i = 0; i < bounds.size(); ++i) {
    // AccumulationBound is linear but for what underflows, which is alike in every element.
    const double underflow = AccumulationBound(0, k);
    const double sure = AccumulationBound(held1[i], k) + (elements - 1) * underflow + rounding1[i];
    const double likely =
        AccumulationBound(held2[i], k) + std::sqrt(elements) * underflow + std::sqrt(rounding2[i]);
    // Our own float64 sums: n terms of D·x and of B·x, k of A·(B·x).
    const double ours = static_cast<double>(n + k + 2) * 0x1p-53 * (d1[i] + held1[i]);
    bounds[i] = std::min(sure, kDeviations * likely) + ours;
  }
  return bounds;
}

absl::Status CheckArguments(const MatrixView& a, const MatrixView& b, const MatrixView& d,
                            const FreivaldsOptions& options) {
  TCGEMM_RETURN_IF_ERROR(CheckWidenable(a, "A"));
  TCGEMM_RETURN_IF_ERROR(CheckWidenable(b, "B"));
  TCGEMM_RETURN_IF_ERROR(CheckWidenable(d, "D"));
  if (a.op_cols() != b.op_rows() || d.op_rows() != a.op_rows() || d.op_cols() != b.op_cols()) {
    return absl::InvalidArgumentError(
        absl::StrCat("shapes disagree: op(A) is ", a.op_rows(), "x", a.op_cols(), ", op(B) is ",
                     b.op_rows(), "x", b.op_cols(), ", D is ", d.op_rows(), "x", d.op_cols()));
  }
  if (options.rounds < 1 || options.rounds > kMaxRounds) {
    return absl::InvalidArgumentError(
        absl::StrCat("rounds is ", options.rounds, "; it must be 1 to ", kMaxRounds));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<FreivaldsResult> CheckFreivalds(const MatrixView& a, const MatrixView& b,
                                               const MatrixView& d,
                                               const FreivaldsOptions& options) {
  TCGEMM_RETURN_IF_ERROR(CheckArguments(a, b, d, options));
  const int64_t m = a.op_rows();
  const Vector bad_in_a = Multiply(a, Vector(a.op_cols(), 1.0), IsNotFinite);
  const Vector bad_in_b = Multiply(b, Vector(b.op_cols(), 1.0), IsNotFinite);
  const Vector bad_in_d = Multiply(d, Vector(d.op_cols(), 1.0), IsNotFinite);
  const bool b_is_finite =
      std::all_of(bad_in_b.begin(), bad_in_b.end(), [](double count) { return count == 0; });
  std::vector<bool> skipped(m);
  for (int64_t i = 0; i < m; ++i) skipped[i] = !b_is_finite || bad_in_a[i] + bad_in_d[i] > 0;

  FreivaldsResult result{.ok = true};
  result.skipped_rows = std::count(skipped.begin(), skipped.end(), true);
  if (result.skipped_rows == m) return result;
  const Vector bounds = RowBounds(a, b, d);
  for (int round = 0; round < options.rounds; ++round) {
    const Vector x = RandomSigns(b.op_cols(), options.seed, round);
    const Vector expected = Multiply(a, Multiply(b, x, Identity), Identity);
    const Vector actual = Multiply(d, x, Identity);
    for (int64_t i = 0; i < m; ++i) {
      const double error = std::abs(actual[i] - expected[i]);
      if (skipped[i] || error == 0) continue;
      const double ratio = error / bounds[i];
      if (ratio <= result.max_error_ratio) continue;
      result.max_error_ratio = ratio;
      result.worst_row = i;
    }
  }
  result.ok = result.max_error_ratio <= 1;
  return result;
}

}  // namespace tcgemm
