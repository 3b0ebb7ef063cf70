// What happens to a product before it is written: D = act(alpha·op(A)·op(B) + beta·C + bias).
//
// alpha = 0: op(A)·op(B) counts as zero, whatever A and B hold. beta = 0: C is not read. Both as
// BLAS has it. In fp32, one rounding after each step, in this order: alpha·(the product), beta·C,
// their sum, that plus the bias; then the activation (kernels/tile/activation.h), then D's type. A
// step with alpha = 1, beta = 0 or no bias is left out, which changes no bits.
#ifndef TCGEMM_MATRIX_EPILOGUE_H_
#define TCGEMM_MATRIX_EPILOGUE_H_

#include <cstdint>

#include "absl/status/status.h"
#include "matrix/activation.h"
#include "matrix/matrix_view.h"

namespace tcgemm {

// Copyable; the views own nothing.
struct Epilogue {
  float alpha = 1;  // finite, as is beta
  float beta = 0;
  // m×n, bf16 or fp32 whatever D is, not transposed. Read when beta is not 0, and needed then.
  MatrixView c;
  // bf16 or fp32: a row, 1×n, whose element j is added to column j of D; or a column, m×1 (rows
  // `ld` apart), whose element i is added to row i. No rows: there is none.
  MatrixView bias;
  Activation activation = Activation::kNone;

  bool reads_c() const { return beta != 0; }
  bool has_bias() const { return bias.rows != 0; }
  // D is the product and nothing else.
  bool is_default() const {
    return alpha == 1 && !reads_c() && !has_bias() && activation == Activation::kNone;
  }
};

// The shape of D.
struct EpilogueShape {
  int64_t m = 0;
  int64_t n = 0;
};

// 1×n is a row, also where m is 1.
inline bool BiasIsColumn(const MatrixView& bias, const EpilogueShape& d) {
  return bias.rows != 1 || bias.cols != d.n;
}

// INVALID_ARGUMENT, naming the field, its value and what it must be, unless alpha and beta are
// finite, C (if it is read) is m×n and the bias (if there is one) 1×n or m×1, both bf16 or fp32 and
// not transposed, and the activation is one. Says nothing about pointers and ld.
absl::Status ValidateEpilogue(const Epilogue& epilogue, const EpilogueShape& d);

// The epilogue of rows [first_row, first_row + rows) of D.
Epilogue EpilogueOfRows(const Epilogue& epilogue, const EpilogueShape& d, int64_t first_row,
                        int64_t rows);

}  // namespace tcgemm

#endif  // TCGEMM_MATRIX_EPILOGUE_H_
