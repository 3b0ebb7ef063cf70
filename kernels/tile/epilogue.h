// From an fp32 value to D: one rounding, one NaN. Shared by all kernels, so that they agree. What
// comes before it where D is more than the product: tile_epilogue.h.
#ifndef TCGEMM_KERNELS_TILE_EPILOGUE_H_
#define TCGEMM_KERNELS_TILE_EPILOGUE_H_

#include <cstdint>

#include "kernels/tile/activation.h"
#include "kernels/tile/host_device.h"

namespace tcgemm {

// The patterns that matrix/bf16.h calls canonical: the hardware's own conversion gives 0x7fff, and
// a NaN's payload depends on which products met first.
inline constexpr uint32_t kOutputNanFp32 = 0x7fc00000u;
inline constexpr uint32_t kOutputNanBf16 = 0x7fc0u;

TCGEMM_HD uint32_t Fp32Output(float value) {
  return value != value ? kOutputNanFp32 : BitsOf(value);
}

// Round to nearest, ties to even; overflow gives Inf.
TCGEMM_HD uint32_t Bf16Output(float value) {
  const uint32_t bits = BitsOf(value);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  return value != value ? kOutputNanBf16 : rounded;
}

TCGEMM_HD bool IsNonfiniteFp32(uint32_t bits) { return (bits & 0x7f800000u) == 0x7f800000u; }
TCGEMM_HD bool IsNonfiniteBf16(uint32_t bits) { return (bits & 0x7f80u) == 0x7f80u; }

#ifdef __CUDACC__
// PAIRS pairs of neighbours of a row, the first one of each in the lower half. True when one is NaN
// or Inf: the hardware rounds, and only then its NaNs are made ours. 0·x, summed up, tells.
template <int PAIRS>
TCGEMM_DEVICE bool PackBf16(const float* values, uint32_t* pairs) {
  uint32_t sum = 0;
#pragma unroll
  for (int i = 0; i < PAIRS; ++i) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;"
        : "=r"(pairs[i])
        : "f"(values[2 * i + 1]), "f"(values[2 * i]));
    asm("fma.rn.bf16x2 %0, %1, %2, %0;" : "+r"(sum) : "r"(pairs[i]), "r"(0));
  }
  const bool nonfinite = (sum & 0x7fff7fffu) != 0;
  if (nonfinite) {
#pragma unroll
    for (int i = 0; i < PAIRS; ++i) {
      pairs[i] = Bf16Output(values[2 * i + 1]) << 16 | Bf16Output(values[2 * i]);
    }
  }
  return nonfinite;
}
#endif

}  // namespace tcgemm

#endif  // TCGEMM_KERNELS_TILE_EPILOGUE_H_
