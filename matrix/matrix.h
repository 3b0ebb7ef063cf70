// A matrix that owns its memory, for clients, tests and benchmarks.
#ifndef TCGEMM_MATRIX_MATRIX_H_
#define TCGEMM_MATRIX_MATRIX_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "matrix/matrix_view.h"

namespace tcgemm {

// Move-only; 64-byte aligned; uninitialised unless a factory below says otherwise. Reserve-once
// buffers: Reshape keeps the memory when it is large enough.
class Matrix {
 public:
  Matrix() = default;
  // Dense: ld = cols. Dimensions ≥ 0.
  Matrix(int64_t rows, int64_t cols, DType dtype);
  // ld ≥ cols.
  Matrix(int64_t rows, int64_t cols, int64_t ld, DType dtype);

  // Contents become unspecified.
  void Reshape(int64_t rows, int64_t cols, DType dtype);

  MatrixView view() const { return {data_.get(), rows_, cols_, ld_, dtype_, false}; }
  // The same storage read as its transpose.
  MatrixView transposed_view() const { return {data_.get(), rows_, cols_, ld_, dtype_, true}; }
  MutableMatrixView mutable_view() { return {data_.get(), rows_, cols_, ld_, dtype_, false}; }

  template <typename T>
  T* data() {
    return reinterpret_cast<T*>(data_.get());
  }
  template <typename T>
  const T* data() const {
    return reinterpret_cast<const T*>(data_.get());
  }
  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }
  int64_t ld() const { return ld_; }
  DType dtype() const { return dtype_; }
  size_t bytes() const { return view().span_bytes(); }

 private:
  struct Free {
    void operator()(std::byte* p) const;
  };
  void Allocate(size_t bytes);

  int64_t rows_ = 0;
  int64_t cols_ = 0;
  int64_t ld_ = 0;
  DType dtype_ = DType::kBf16;
  size_t capacity_ = 0;
  std::unique_ptr<std::byte, Free> data_;
};

// Independent standard normals, rounded to the matrix's type (kBf16 or kFp32); the same for the
// same seed on every machine, whatever the ld. Gaps between rows (ld > cols) are filled with NaN,
// so that a kernel that reads them is found out.
void FillNormal(Matrix& matrix, uint64_t seed);
// All elements, gaps included.
void FillBytes(Matrix& matrix, uint8_t byte);
// Reads one element as double. Not for loops that matter.
double ElementAt(const MatrixView& view, int64_t i, int64_t j);

}  // namespace tcgemm

#endif  // TCGEMM_MATRIX_MATRIX_H_
