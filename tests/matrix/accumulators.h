// Dot products as machines do them, emulated bit by bit, for tests of the error bound.
#ifndef TCGEMM_TESTS_MATRIX_ACCUMULATORS_H_
#define TCGEMM_TESTS_MATRIX_ACCUMULATORS_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "matrix/bf16.h"
#include "matrix/matrix.h"

namespace tcgemm {

using Products = std::vector<double>;  // of bf16 values: exact

// Toward zero, to a multiple of `quantum`, a power of two.
inline double TruncateTo(double x, double quantum) { return std::trunc(x / quantum) * quantum; }

// To fp32, toward zero.
inline double TruncateToFp32(double x) {
  if (x == 0) return 0;
  return TruncateTo(x, std::ldexp(1.0, std::max(std::ilogb(x), -126) - 23));
}

struct TensorCore {
  int64_t block = 16;  // products that one hardware step adds
  int guard_bits = 2;  // kept beyond fp32's 23 when aligning
};
inline constexpr TensorCore kHopper{.block = 16, .guard_bits = 2};
inline constexpr TensorCore kAmpere{.block = 8, .guard_bits = 1};

// F. Khattak, M. Mikaitis, "Accurate Models of NVIDIA Tensor Cores", arXiv:2512.07004.
inline double TensorCoreDot(const Products& products, TensorCore core) {
  const int64_t size = static_cast<int64_t>(products.size());
  double accumulator = 0;
  for (int64_t start = 0; start < size; start += core.block) {
    const int64_t end = std::min(start + core.block, size);
    double largest = std::abs(accumulator);
    for (int64_t k = start; k < end; ++k) largest = std::max(largest, std::abs(products[k]));
    if (largest == 0) continue;
    const double quantum =
        std::ldexp(1.0, std::max(std::ilogb(largest), -126) - 23 - core.guard_bits);
    double sum = TruncateTo(accumulator, quantum);
    for (int64_t k = start; k < end; ++k) sum += TruncateTo(products[k], quantum);
    accumulator = TruncateToFp32(sum);
  }
  return accumulator;
}

// fp32 in order, rounded to nearest; an accumulator restarted every `chunk` and added to the rest.
inline double ChunkedDot(const Products& products, size_t chunk) {
  float total = 0;
  for (size_t start = 0; start < products.size(); start += chunk) {
    float partial = 0;
    for (size_t k = start; k < std::min(start + chunk, products.size()); ++k) {
      partial += static_cast<float>(products[k]);
    }
    total += partial;
  }
  return total;
}
inline double ChainDot(const Products& products) { return ChunkedDot(products, products.size()); }

// Two products summed first, then added; everything subnormal flushed (AVX512-BF16).
inline double PairsDot(const Products& products) {
  const auto flush = [](float x) { return std::abs(x) < 0x1p-126f ? 0.0f : x; };
  float sum = 0;
  for (size_t k = 0; k < products.size(); k += 2) {
    const float first = flush(static_cast<float>(products[k]));
    const float second =
        k + 1 < products.size() ? flush(static_cast<float>(products[k + 1])) : 0.0f;
    sum = flush(sum + flush(first + second));
  }
  return sum;
}

// Sixteen sums of every sixteenth product, then a tree (a dot product along a vector register).
inline double LanesDot(const Products& products) {
  float lanes[16] = {};
  for (size_t k = 0; k < products.size(); ++k) lanes[k % 16] += static_cast<float>(products[k]);
  for (int width = 8; width >= 1; width /= 2) {
    for (int lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
  }
  return lanes[0];
}

struct Accumulator {
  std::string name;
  double (*dot)(const Products&);
};

// Those for which ErrorBound is proven.
inline std::vector<Accumulator> AscendingAccumulators() {
  return {{"hopper", [](const Products& p) { return TensorCoreDot(p, kHopper); }},
          {"ampere", [](const Products& p) { return TensorCoreDot(p, kAmpere); }},
          {"chain", ChainDot},
          {"pairs", PairsDot}};
}
// Those for which it holds on data that was not made to break it.
inline std::vector<Accumulator> ReorderedAccumulators() {
  return {{"chunks of 384", [](const Products& p) { return ChunkedDot(p, 384); }},
          {"lanes", LanesDot}};
}

inline Products ProductsOf(const MatrixView& a, int64_t i, const MatrixView& b, int64_t j) {
  Products products(a.op_cols());
  for (int64_t k = 0; k < a.op_cols(); ++k) products[k] = ElementAt(a, i, k) * ElementAt(b, k, j);
  return products;
}

inline void SetElement(Matrix& matrix, int64_t i, int64_t j, double value) {
  const int64_t index = matrix.view().IndexOf(i, j);
  if (matrix.dtype() == DType::kBf16) {
    matrix.data<Bf16>()[index] = ToBf16(static_cast<float>(value));
  } else {
    matrix.data<float>()[index] = static_cast<float>(value);
  }
}

inline Matrix Multiply(const MatrixView& a, const MatrixView& b, DType output,
                       double (*dot)(const Products&)) {
  Matrix d(a.op_rows(), b.op_cols(), output);
  for (int64_t i = 0; i < d.rows(); ++i) {
    for (int64_t j = 0; j < d.cols(); ++j) SetElement(d, i, j, dot(ProductsOf(a, i, b, j)));
  }
  return d;
}

inline double HopperDot(const Products& products) { return TensorCoreDot(products, kHopper); }

}  // namespace tcgemm

#endif  // TCGEMM_TESTS_MATRIX_ACCUMULATORS_H_
