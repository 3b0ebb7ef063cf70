// A product for servers in the test's process: each sum in one order, so that the bits are the same
// however the operands came.
#ifndef TCGEMM_TESTS_CLIENT_NAIVE_PRODUCT_H_
#define TCGEMM_TESTS_CLIENT_NAIVE_PRODUCT_H_

#include <string>

#include "matrix/bf16.h"
#include "matrix/matrix.h"

namespace tcgemm::client {

// op(A)·op(B), dense, as it travels: fp32 or else bf16.
inline std::string NaiveProduct(const MatrixView& a, const MatrixView& b, bool fp32) {
  std::string d;
  for (int64_t i = 0; i < a.op_rows(); ++i) {
    for (int64_t j = 0; j < b.op_cols(); ++j) {
      float sum = 0;
      for (int64_t k = 0; k < a.op_cols(); ++k) {
        sum += static_cast<float>(ElementAt(a, i, k) * ElementAt(b, k, j));
      }
      const Bf16 rounded = ToBf16(sum);
      const void* const bytes = fp32 ? static_cast<const void*>(&sum) : &rounded;
      d.append(static_cast<const char*>(bytes), fp32 ? sizeof(sum) : sizeof(rounded));
    }
  }
  return d;
}

}  // namespace tcgemm::client

#endif  // TCGEMM_TESTS_CLIENT_NAIVE_PRODUCT_H_
