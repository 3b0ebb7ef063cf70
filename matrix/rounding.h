// The two parts of every error bound in matrix/. The derivation is in reference.cc.
#ifndef TCGEMM_MATRIX_ROUNDING_H_
#define TCGEMM_MATRIX_ROUNDING_H_

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace tcgemm {

// The k that one step of a Tensor Core sums.
inline constexpr int64_t kBoundBlock = 16;

// What accumulating k products in fp32 can lose, `held` being Σ over k16 blocks of what the
// accumulator and the block held in magnitude.
inline double AccumulationBound(double held, int64_t k) {
  const double steps = static_cast<double>(k);
  return 0x5p-22 * held * (1 + steps * 0x1p-23) + steps * 0x1p-126;
}

// Half of the distance between neighbouring bf16 values in the binade of `magnitude` ≥ 0: the most
// that rounding a value of that size to bf16 changes it. Inf and NaN give Inf or NaN.
inline double HalfUlpBf16(double magnitude) {
  if (!std::isfinite(magnitude)) return magnitude;
  // 2^e ≤ magnitude has 7 bits after the point; subnormals share the smallest binade's ulp.
  const int exponent = magnitude == 0 ? -126 : std::max(std::ilogb(magnitude), -126);
  return std::ldexp(1.0, exponent - 8);
}

}  // namespace tcgemm

#endif  // TCGEMM_MATRIX_ROUNDING_H_
