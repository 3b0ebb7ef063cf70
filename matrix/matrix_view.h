// A view of a row-major matrix in somebody else's memory. Copyable, owns nothing.
//
// `rows` × `cols` is the matrix as stored; element (i, j) as stored lies at data[i·ld + j].
// `transposed` says that the product uses the transpose: op_rows/op_cols and At() see that one.
#ifndef TCGEMM_MATRIX_MATRIX_VIEW_H_
#define TCGEMM_MATRIX_MATRIX_VIEW_H_

#include <cstddef>
#include <cstdint>

#include "matrix/dtype.h"

namespace tcgemm {

template <typename Void>
struct BasicMatrixView {
  Void* data = nullptr;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t ld = 0;  // elements between the starts of two rows, ≥ cols
  DType dtype = DType::kBf16;
  bool transposed = false;

  int64_t op_rows() const { return transposed ? cols : rows; }
  int64_t op_cols() const { return transposed ? rows : cols; }
  // Elements from the first to one past the last: (rows − 1)·ld + cols, or 0 when empty.
  int64_t span_elements() const { return rows == 0 || cols == 0 ? 0 : (rows - 1) * ld + cols; }
  size_t span_bytes() const { return static_cast<size_t>(span_elements()) * DTypeSize(dtype); }
  // Index of element (i, j) of op(matrix), in elements from data.
  int64_t IndexOf(int64_t i, int64_t j) const { return transposed ? j * ld + i : i * ld + j; }
};

using MatrixView = BasicMatrixView<const void>;
using MutableMatrixView = BasicMatrixView<void>;

inline MatrixView AsConst(const MutableMatrixView& m) {
  return {m.data, m.rows, m.cols, m.ld, m.dtype, m.transposed};
}

}  // namespace tcgemm

#endif  // TCGEMM_MATRIX_MATRIX_VIEW_H_
