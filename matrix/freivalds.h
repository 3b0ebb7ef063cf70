// Freivalds' check: is D = op(A)·op(B)? In O(mn + mk + kn), with random vectors.
//
// Source: R. Freivalds, "Probabilistic machines can use less running time", IFIP 1977; the bound on
// rounding follows matrix/reference.h.
#ifndef TCGEMM_MATRIX_FREIVALDS_H_
#define TCGEMM_MATRIX_FREIVALDS_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "matrix/matrix_view.h"

namespace tcgemm {

struct FreivaldsOptions {
  int rounds = 4;  // independent ±1 vectors, 1 … 64
  // The bound is probabilistic over the vectors: whoever chooses A and B must not know the seed.
  uint64_t seed = 1;
};

struct FreivaldsResult {
  // No row that was looked at is wrong. Says nothing about skipped rows.
  bool ok = false;
  // max over rows and rounds of |D·x − A·(B·x)|_i / bound_i.
  double max_error_ratio = 0;
  int64_t worst_row = 0;
  // Rows left out because they hold a NaN or Inf in op(A) or D (or all, when op(B) does).
  int64_t skipped_rows = 0;
};

// A, B bf16 or fp32; D bf16 or fp32. INVALID_ARGUMENT when shapes disagree or rounds is out of
// range. A right row is called wrong with a probability below 4e-22 per round; a wrong one is
// missed where its error is small beside the row's bound, or cancels in every round (2^-rounds at
// most).
absl::StatusOr<FreivaldsResult> CheckFreivalds(const MatrixView& a, const MatrixView& b,
                                               const MatrixView& d,
                                               const FreivaldsOptions& options);

}  // namespace tcgemm

#endif  // TCGEMM_MATRIX_FREIVALDS_H_
