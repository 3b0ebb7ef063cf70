// Accumulators to D, straight from registers.
#ifndef TCGEMM_KERNELS_TILE_STORE_H_
#define TCGEMM_KERNELS_TILE_STORE_H_

#include <cstdint>

#include "kernels/gpu_problem.h"
#include "kernels/tile/epilogue.h"
#include "kernels/tile/host_device.h"

namespace tcgemm {

// Two neighbours of a row at (row, column), as far as they lie inside D. Even columns of an even ld
// in an 8-byte aligned D: one aligned store. True when one of them is NaN or Inf.
template <bool FP32>
TCGEMM_HD bool StorePair(const TileProblem& problem, int row, int column, float first,
                         float second) {
  if (row >= problem.m || column >= problem.n) return false;
  const int64_t at = static_cast<int64_t>(row) * problem.ldd + column;
  const bool both = column + 1 < problem.n;
  if (FP32) {
    auto* d = static_cast<uint32_t*>(problem.d) + at;
    const uint32_t bits[2] = {Fp32Output(first), Fp32Output(second)};
    if (both) {
      *reinterpret_cast<uint64_t*>(d) = static_cast<uint64_t>(bits[1]) << 32 | bits[0];
    } else {
      *d = bits[0];
    }
    return IsNonfiniteFp32(bits[0]) || (both && IsNonfiniteFp32(bits[1]));
  }
  auto* d = static_cast<uint16_t*>(problem.d) + at;
  const uint32_t bits[2] = {Bf16Output(first), Bf16Output(second)};
  if (both) {
    *reinterpret_cast<uint32_t*>(d) = bits[1] << 16 | bits[0];
  } else {
    *d = static_cast<uint16_t>(bits[0]);
  }
  return IsNonfiniteBf16(bits[0]) || (both && IsNonfiniteBf16(bits[1]));
}

// Two neighbours of a row of D at (row, column), bf16, the first one in the lower half; as
// StorePair but of swapped operands, so D is n×m.
TCGEMM_HD void StorePackedSwapped(const TileProblem& problem, int row, int column, uint32_t pair) {
  if (row >= problem.n || column >= problem.m) return;
  auto* d = static_cast<uint16_t*>(problem.d) + static_cast<int64_t>(row) * problem.ldd + column;
  if (column + 1 < problem.m) {
    *reinterpret_cast<uint32_t*>(d) = pair;
  } else {
    *d = static_cast<uint16_t>(pair);
  }
}

// The element of D at (row, column), which may lie outside: `problem` is of swapped operands, so D
// is n×m there. True when it is NaN or Inf.
template <bool FP32>
TCGEMM_HD bool StoreElement(const TileProblem& problem, int row, int column, float value) {
  if (row >= problem.n || column >= problem.m) return false;
  const int64_t at = static_cast<int64_t>(row) * problem.ldd + column;
  const uint32_t bits = FP32 ? Fp32Output(value) : Bf16Output(value);
  if (FP32) {
    static_cast<uint32_t*>(problem.d)[at] = bits;
    return IsNonfiniteFp32(bits);
  }
  static_cast<uint16_t*>(problem.d)[at] = static_cast<uint16_t>(bits);
  return IsNonfiniteBf16(bits);
}

}  // namespace tcgemm

#endif  // TCGEMM_KERNELS_TILE_STORE_H_
