// Counter-based random bits: a value depends on seed and index alone, so order and machine do not
// matter.
//
// Source: G. Steele, D. Lea, C. Flood, "Fast splittable pseudorandom number generators", OOPSLA
// 2014 (SplitMix64's finaliser; also java.util.SplittableRandom).
#ifndef TCGEMM_MATRIX_SPLITMIX_H_
#define TCGEMM_MATRIX_SPLITMIX_H_

#include <cstdint>

namespace tcgemm {

constexpr uint64_t SplitMix64(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// 64 bits for place `index` of the sequence `seed`.
constexpr uint64_t RandomBits(uint64_t seed, uint64_t index) {
  return SplitMix64(SplitMix64(seed) + index * 0x9e3779b97f4a7c15u);
}

}  // namespace tcgemm

#endif  // TCGEMM_MATRIX_SPLITMIX_H_
