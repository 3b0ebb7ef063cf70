// The product in float64, and how far a right answer may be from it.
#ifndef TCGEMM_MATRIX_REFERENCE_H_
#define TCGEMM_MATRIX_REFERENCE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "matrix/epilogue.h"
#include "matrix/matrix_view.h"

namespace tcgemm {

// One exact element: Σ_k a·b and Σ_k |a·b| in float64 (a product of two bf16 is exact there; the
// sums carry at most k·2^-53 relative to abs_sum).
struct ReferenceElement {
  double exact = 0;
  double abs_sum = 0;
  // Σ_t |p_t|, p_t the sum of the products of the first t k16 blocks, 0 ≤ t < ⌈k/16⌉: what an
  // accumulator held, and so could lose a part of, before each block. An element made by hand that
  // does not know it may put abs_sum·k/16 here: never too small, but loose.
  double prefix_abs = 0;
};

// Row-major m×n.
struct Reference {
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  std::vector<ReferenceElement> elements;
  const ReferenceElement& at(int64_t i, int64_t j) const { return elements[i * n + j]; }
};

// O(m·n·k), cache-blocked, in the calling thread. A and B bf16 or fp32. INVALID_ARGUMENT when inner
// dimensions differ, a type is another one, or a row is not one of op(A)'s.
absl::StatusOr<Reference> ComputeReference(const MatrixView& a, const MatrixView& b);
// The same for some rows of op(A) only: result row r is row rows[r].
absl::StatusOr<Reference> ComputeReferenceRows(const MatrixView& a, const MatrixView& b,
                                               const std::vector<int64_t>& rows);

// The largest |computed − exact| that a right kernel can produce for an element of a product of
// inner dimension k written as `output` (kBf16 or kFp32):
//   (5·2^-22·(prefix_abs + abs_sum))·(1 + k·2^-23) + k·2^-126 [+ half an ulp of bf16].
// Proven for sums in ascending k16 blocks, rounded or truncated; the derivation, and what holds for
// other orders, is in reference.cc.
double ErrorBound(const ReferenceElement& element, int64_t k, DType output);

struct Comparison {
  bool ok = false;
  // max |D − exact| / bound over the elements; ≤ 1 when ok; Inf when a NaN or Inf is missing or
  // wrong.
  double max_error_ratio = 0;
  int64_t worst_row = 0;
  int64_t worst_col = 0;
  double worst_value = 0;
  double worst_exact = 0;
  double worst_bound = 0;
  // "D[3,17] = 1.5 but the exact value is 2.25 ± 0.01": for people.
  std::string ToString() const;
};

// Compares D (bf16 or fp32, not transposed) element by element. Where the exact value is NaN, D
// must be NaN; where it is ±Inf, that Inf; where |exact| + bound exceeds the output type's largest
// finite value, the Inf of that sign is accepted too; where abs_sum + its fp32 bound exceeds
// FLT_MAX, any Inf and NaN is, as a partial sum may have overflowed. INVALID_ARGUMENT for another
// shape or type.
//
// With an epilogue, D must be that of the reference: the bound is ApplyEpilogue's of
// matrix/epilogue_bound.h, and an intermediate result beyond FLT_MAX excuses an Inf and a NaN, or,
// before an activation, anything. C and the bias, where the epilogue reads them, are views of D's
// shape (EpilogueOfRows for a reference of some rows).
absl::StatusOr<Comparison> CompareWithReference(const MatrixView& d, const Reference& reference,
                                                const Epilogue& epilogue = {});

}  // namespace tcgemm

#endif  // TCGEMM_MATRIX_REFERENCE_H_
