#include "matrix/matrix.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <new>

#include "matrix/bf16.h"
#include "matrix/splitmix.h"

namespace tcgemm {
namespace {

constexpr std::align_val_t kAlignment{64};

// ln(x) for x > 0 from +, ·, / alone: IEEE fixes their bits, which no libm's log promises.
double PortableLog(double x) {
  int exponent;
  double mantissa = std::frexp(x, &exponent);
  if (mantissa < 0.70710678118654752) {
    mantissa *= 2;
    --exponent;
  }
  // ln(m) = 2·atanh(f), f = (m − 1)/(m + 1), |f| < 0.172: twelve terms reach 2^-53.
  const double f = (mantissa - 1) / (mantissa + 1);
  double series = 0;
  for (int term = 23; term >= 1; term -= 2) series = series * (f * f) + 1.0 / term;
  return exponent * 0.69314718055994531 + 2 * f * series;
}

struct NormalPair {
  double first;
  double second;
};

// Marsaglia's polar method; `pair` counts pairs. Each try draws from its own place in the sequence.
NormalPair DrawNormalPair(uint64_t seed, uint64_t pair) {
  for (uint64_t attempt = 0;; ++attempt) {
    const uint64_t bits = RandomBits(seed + attempt * 0xd1342543de82ef95u, pair);
    const double u = static_cast<int32_t>(bits >> 32) * 0x1p-31;
    const double v = static_cast<int32_t>(bits & 0xffffffffu) * 0x1p-31;
    const double s = u * u + v * v;
    if (s <= 0 || s >= 1) continue;
    const double scale = std::sqrt(-2 * PortableLog(s) / s);
    return {u * scale, v * scale};
  }
}

template <typename T, typename Convert>
void FillNormalAs(Matrix& matrix, uint64_t seed, Convert convert) {
  const T gap = convert(std::numeric_limits<double>::quiet_NaN());
  NormalPair pair{};
  for (int64_t i = 0; i < matrix.rows(); ++i) {
    T* row = matrix.data<T>() + i * matrix.ld();
    for (int64_t j = 0; j < matrix.cols(); ++j) {
      // Counted without the gaps, so that ld does not change the values.
      const uint64_t index = static_cast<uint64_t>(i * matrix.cols() + j);
      if (index % 2 == 0) pair = DrawNormalPair(seed, index / 2);
      row[j] = convert(index % 2 == 0 ? pair.first : pair.second);
    }
    if (i + 1 == matrix.rows()) break;  // the last row has no gap: the span ends with it
    for (int64_t j = matrix.cols(); j < matrix.ld(); ++j) row[j] = gap;
  }
}

}  // namespace

void Matrix::Free::operator()(std::byte* p) const { ::operator delete(p, kAlignment); }

Matrix::Matrix(int64_t rows, int64_t cols, DType dtype) : Matrix(rows, cols, cols, dtype) {}

Matrix::Matrix(int64_t rows, int64_t cols, int64_t ld, DType dtype)
    : rows_(rows), cols_(cols), ld_(ld), dtype_(dtype) {
  Allocate(bytes());
}

void Matrix::Reshape(int64_t rows, int64_t cols, DType dtype) {
  rows_ = rows;
  cols_ = cols;
  ld_ = cols;
  dtype_ = dtype;
  Allocate(bytes());
}

void Matrix::Allocate(size_t bytes) {
  // A moved-from matrix keeps its capacity_ but has no memory.
  if (bytes == 0 || (data_ != nullptr && bytes <= capacity_)) return;
  // Freed first, so that two large buffers never live at once. Exactly the span, not a byte more:
  // AddressSanitizer then sees a read past the last row.
  data_.reset();
  capacity_ = 0;
  data_.reset(static_cast<std::byte*>(::operator new(bytes, kAlignment)));
  capacity_ = bytes;
}

void FillNormal(Matrix& matrix, uint64_t seed) {
  if (matrix.bytes() == 0) return;
  if (matrix.dtype() == DType::kBf16) {
    FillNormalAs<Bf16>(matrix, seed, [](double x) { return ToBf16(static_cast<float>(x)); });
  } else {
    FillNormalAs<float>(matrix, seed, [](double x) { return static_cast<float>(x); });
  }
}

void FillBytes(Matrix& matrix, uint8_t byte) {
  if (matrix.bytes() > 0) std::memset(matrix.data<std::byte>(), byte, matrix.bytes());
}

double ElementAt(const MatrixView& view, int64_t i, int64_t j) {
  const int64_t index = view.IndexOf(i, j);
  switch (view.dtype) {
    case DType::kBf16:
      return ToFloat(static_cast<const Bf16*>(view.data)[index]);
    case DType::kFp32:
      return static_cast<const float*>(view.data)[index];
    case DType::kInt8:
      return static_cast<const int8_t*>(view.data)[index];
    case DType::kInt32:
      return static_cast<const int32_t*>(view.data)[index];
  }
  return 0;
}

}  // namespace tcgemm
