// bf16 ("brain floating point"): sign, 8 exponent bits, 7 mantissa bits; the upper half of
// binary32.
#ifndef TCGEMM_MATRIX_BF16_H_
#define TCGEMM_MATRIX_BF16_H_

#include <bit>
#include <cstdint>

namespace tcgemm {

// The bit pattern, as it travels. Converting to fp32 is exact for all 65,536 patterns.
struct Bf16 {
  uint16_t bits = 0;
  bool operator==(const Bf16&) const = default;  // of bits: NaN equals itself, -0 differs from 0
};

constexpr float ToFloat(Bf16 x) {
  return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16);
}

// The one NaN that tcgemm writes into results: quiet, positive, empty payload (0x7fc0, 0x7fc00000).
inline constexpr Bf16 kCanonicalNanBf16{0x7fc0};
inline constexpr uint32_t kCanonicalNanFp32Bits = 0x7fc00000;

// Round to nearest, ties to even; overflow gives Inf; a NaN stays a NaN and keeps its sign and its
// upper payload bits, so ToBf16(ToFloat(x)) == x for all 65,536 patterns.
constexpr Bf16 ToBf16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) {
    const uint32_t upper = bits >> 16;
    // A payload only in the lower half would become Inf: set the quiet bit then.
    return Bf16{static_cast<uint16_t>((upper & 0x7fu) != 0 ? upper : upper | 0x40u)};
  }
  const uint32_t ties_to_even = 0x7fffu + ((bits >> 16) & 1u);
  return Bf16{static_cast<uint16_t>((bits + ties_to_even) >> 16)};
}

}  // namespace tcgemm

#endif  // TCGEMM_MATRIX_BF16_H_
