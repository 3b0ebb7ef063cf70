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
// Two neighbours of a row, the first one in the lower half. Sets `nonfinite` if one is NaN or Inf.
TCGEMM_DEVICE uint32_t PackBf16(float first, float second, bool& nonfinite) {
  uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(second), "f"(first));
  if (IsNonfiniteBf16(packed) || IsNonfiniteFp32(packed)) {  // the upper half's exponent is fp32's
    nonfinite = true;
    packed = Bf16Output(second) << 16 | Bf16Output(first);
  }
  return packed;
}
#endif

}  // namespace tcgemm

#endif  // TCGEMM_KERNELS_TILE_EPILOGUE_H_
