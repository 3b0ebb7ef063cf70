// The activations in fp32, in operations that every machine rounds alike: multiplications,
// additions and fused multiply-adds, each rounded once, to nearest, in the order written here. No
// library's expf or erff, no approximate instruction, no division: so GPU kernels and CPU kernels
// give the same bits for the same x, whatever compiled them, and a host test sees what a GPU
// computes.
//
// Each is within 2^-20 of itself, relatively; where that underflows, within 2^-118.
// tests/kernels/activation_test.cc tries them on floats of all sizes against float64.
#ifndef TCGEMM_KERNELS_TILE_ACTIVATION_H_
#define TCGEMM_KERNELS_TILE_ACTIVATION_H_

#include <cstdint>

#include "kernels/tile/host_device.h"
#include "matrix/activation.h"

namespace tcgemm {

// One rounding each: nvcc may not fuse these, the host's compiler is told not to fuse anything.
TCGEMM_HD float MultiplyRn(float a, float b) {
#ifdef __CUDA_ARCH__
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}
TCGEMM_HD float AddRn(float a, float b) {
#ifdef __CUDA_ARCH__
  return __fadd_rn(a, b);
#else
  return a + b;
#endif
}
// a·b + c
TCGEMM_HD float FmaRn(float a, float b, float c) {
#ifdef __CUDA_ARCH__
  return __fmaf_rn(a, b, c);
#else
  return __builtin_fmaf(a, b, c);
#endif
}
TCGEMM_HD uint32_t BitsOf(float value) {
#ifdef __CUDA_ARCH__
  return __float_as_uint(value);
#else
  return __builtin_bit_cast(uint32_t, value);
#endif
}
TCGEMM_HD float FloatOf(uint32_t bits) {
#ifdef __CUDA_ARCH__
  return __uint_as_float(bits);
#else
  return __builtin_bit_cast(float, bits);
#endif
}

// e^-(y + rest) for 0 ≤ y ≤ 87 and a rest of less than an ulp of y. e^-y = 2^n·e^r with n the whole
// number nearest to -y/ln 2, so |r| ≤ ln(2)/2.
TCGEMM_HD float ExpOfNegative(float y, float rest) {
  constexpr float kLog2E = 0x1.715476p+0f;
  // Adding 1.5·2^23 leaves a whole number in the lowest bits.
  constexpr float kRounder = 0x1.8p23f;
  // ln 2 in two parts; the first has zeros at its end, so that n times it is exact.
  constexpr float kLn2High = 0x1.62e4p-1f;
  constexpr float kLn2Low = 0x1.7f7d1cp-20f;
  const float shifted = FmaRn(y, -kLog2E, kRounder);
  const float n = AddRn(shifted, -kRounder);
  const float high = FmaRn(n, -kLn2High, -y);
  const float r = AddRn(FmaRn(n, -kLn2Low, high), -rest);
  float p = 0x1.6a23d2p-10f;  // minimax on ±ln(2)/2, relative error 2^-28
  p = FmaRn(p, r, 0x1.123a2p-7f);
  p = FmaRn(p, r, 0x1.5558f2p-5f);
  p = FmaRn(p, r, 0x1.555492p-3f);
  p = FmaRn(p, r, 0x1.fffffcp-2f);
  p = FmaRn(p, r, 1.0f);
  p = FmaRn(p, r, 1.0f);
  return FloatOf(BitsOf(p) + (BitsOf(shifted) << 23));  // n onto the exponent
}

// One step of Newton's towards 1/y: twice as many right digits.
TCGEMM_HD float ImproveReciprocal(float y, float reciprocal) {
  return FmaRn(reciprocal, FmaRn(-y, reciprocal, 1.0f), reciprocal);
}

// A NaN stays one; -0 stays -0.
TCGEMM_HD float Relu(float x) { return x < 0 ? 0.0f : x; }

// x·σ(x). With e = e^-|x|: x/(1 + e), or x·e/(1 + e) below 0, so that nothing cancels.
TCGEMM_HD float Silu(float x) {
  constexpr float kEnd = 87.0f;  // beyond it e is next to nothing: x or -0
  const float magnitude = x < 0 ? -x : x;
  const bool inside = magnitude < kEnd;  // a NaN is not
  const float t = inside ? magnitude : kEnd;
  const float e = inside ? ExpOfNegative(t, 0.0f) : 0.0f;
  const float y = AddRn(1.0f, e);
  // Minimax on [1, 2]: off by 1 %.
  float reciprocal = FmaRn(0x1.4afd6ap-2f, y, -0x1.745d18p+0f);
  reciprocal = FmaRn(reciprocal, y, 0x1.0f83ep+1f);
  reciprocal = ImproveReciprocal(y, reciprocal);
  reciprocal = ImproveReciprocal(y, reciprocal);
  return MultiplyRn(x < 0 ? MultiplyRn(-t, e) : x, reciprocal);
}

// max(x, 0) - |x|·Q(|x|), where Q(t) = 1 - Φ(t) = e^(-t²/2)·R(t): nothing cancels. R, which falls
// from 1/2 to 1/(t·√2π), is u·(a polynomial in u), u = 1/(1 + 0.26·t).
TCGEMM_HD float Gelu(float x) {
  constexpr float kEnd = 13.0f;  // beyond it Q is next to nothing: x or 0
  const float magnitude = x < 0 ? -x : x;
  const bool inside = magnitude < kEnd;  // a NaN is not
  const float t = inside ? magnitude : kEnd;
  const float half = MultiplyRn(0.5f, t);
  const float square = MultiplyRn(half, t);
  const float lost = FmaRn(half, t, -square);  // exact
  const float e = inside ? ExpOfNegative(square, lost) : 0.0f;
  const float y = FmaRn(0x1.0a3d7p-2f, t, 1.0f);
  // The bits of a float are about its logarithm: 1/y to 12 %.
  float u = FloatOf(0x7ef311c7u - BitsOf(y));
  u = ImproveReciprocal(y, u);
  u = ImproveReciprocal(y, u);
  u = ImproveReciprocal(y, u);
  float p = 0x1.fcfbf2p-6f;  // minimax on [0, 13], relative error 2^-25.7
  p = FmaRn(p, u, -0x1.3e9d7ep-3f);
  p = FmaRn(p, u, 0x1.0761fp-2f);
  p = FmaRn(p, u, -0x1.42ae6ap-3f);
  p = FmaRn(p, u, 0x1.531986p-3f);
  p = FmaRn(p, u, 0x1.9196c8p-5f);
  p = FmaRn(p, u, 0x1.a828dcp-4f);
  p = FmaRn(p, u, 0x1.a5a5b8p-4f);
  p = FmaRn(p, u, 0x1.a9040ep-4f);
  const float tail = MultiplyRn(t, MultiplyRn(e, MultiplyRn(p, u)));
  return AddRn(x < 0 ? 0.0f : x, -tail);
}

TCGEMM_HD float Activate(Activation activation, float x) {
  switch (activation) {
    case Activation::kRelu:
      return Relu(x);
    case Activation::kGelu:
      return Gelu(x);
    case Activation::kSilu:
      return Silu(x);
    case Activation::kNone:
      break;
  }
  return x;
}

}  // namespace tcgemm

#endif  // TCGEMM_KERNELS_TILE_ACTIVATION_H_
