#include "matrix/epilogue_bound.h"

#include <algorithm>
#include <cmath>

namespace tcgemm {
namespace {

constexpr double kUnit = 0x1p-24;        // half an ulp of fp32, relatively
constexpr double kUnderflow = 0x1p-150;  // half of the least subnormal
// What kernels/tile/activation.h promises of GELU and SiLU.
constexpr double kFunctionError = 0x1p-20;
constexpr double kFunctionUnderflow = 0x1p-118;

const double kInvSqrt2 = std::sqrt(0.5);
const double kInvSqrt2Pi = 1 / std::sqrt(2 * std::acos(-1.0));

double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double NormalBelow(double x) { return 0.5 * std::erfc(-x * kInvSqrt2); }

// |f'(x)|, and the most that f' and f'' are anywhere.
struct Slope {
  double here;
  double anywhere;
  double curvature;
};

Slope SlopeOf(Activation activation, double x) {
  if (activation == Activation::kGelu) {
    const double density = kInvSqrt2Pi * std::exp(-x * x / 2);
    return {std::abs(NormalBelow(x) + x * density), 1.13, 0.8};
  }
  const double s = Sigmoid(x);
  return {std::abs(s * (1 + x * (1 - s))), 1.1, 0.5};
}

// From the value before the activation to the one after it.
ValueWithError Activated(const ValueWithError& value, Activation activation) {
  ValueWithError result = value;
  const double x = value.exact;
  result.exact = ExactActivation(activation, x);
  if (!std::isfinite(x)) {
    result.error = 0;
  } else if (activation == Activation::kRelu) {
    // ReLU turns a corner, but never back: its ends tell.
    const double up = ExactActivation(activation, x + value.error) - result.exact;
    const double down = result.exact - ExactActivation(activation, x - value.error);
    result.error = std::max(up, down);
  } else {
    const Slope slope = SlopeOf(activation, x);
    const double steepest = std::min(slope.anywhere, slope.here + slope.curvature * value.error);
    result.error = steepest * value.error;
    result.error += kFunctionError * (std::abs(result.exact) + result.error) + kFunctionUnderflow;
  }
  return result;
}

}  // namespace

double ExactActivation(Activation activation, double x) {
  switch (activation) {
    case Activation::kNone:
      break;
    case Activation::kRelu:
      return x < 0 ? 0 : x;
    case Activation::kGelu:
      return std::isinf(x) && x < 0 ? 0 : x * NormalBelow(x);
    case Activation::kSilu:
      return std::isinf(x) && x < 0 ? 0 : x * Sigmoid(x);
  }
  return x;
}

// Each step of matrix/epilogue.h is one fp32 operation on values with errors, u = 2^-24 the
// rounding:
//   v1 = alpha·s    |v1 − αS| ≤ |α|·E + u·(|αS| + |α|·E) + 2^-150; no rounding where alpha is 1
//   p  = beta·c     |p − βC| ≤ u·|βC| + 2^-150
//   v2 = v1 + p     errors add; rounding the sum: u·(|αS + βC| + both). A sum that underflows is
//                   exact.
//   v3 = v2 + bias  the same; the bias has no error.
// An activation multiplies the error by what f' is at most between the exact value and the
// computed one: |f'(X)| + e·max|f''|, and no more than max|f'| (GELU 1.13 at √2, SiLU 1.10 at 2.4),
// and adds its own error. So below zero, where GELU and SiLU are flat, so is the bound.
ValueWithError ApplyEpilogue(const ValueWithError& product, const EpilogueTerms& terms) {
  ValueWithError value = terms.alpha == 0 ? ValueWithError{} : product;
  const auto reach = [&value](double magnitude) {
    // An Inf among the operands is no overflow.
    if (std::isfinite(magnitude)) value.largest = std::max(value.largest, magnitude);
  };
  if (terms.alpha != 1 && terms.alpha != 0) {
    value.exact *= terms.alpha;
    value.error *= std::abs(terms.alpha);
    reach(value.largest * std::abs(terms.alpha));
    value.error += kUnit * (std::abs(value.exact) + value.error) + kUnderflow;
  }
  const auto add = [&](double addend, double error) {
    value.exact += addend;
    value.error += error;
    reach(std::abs(addend) + error);
    reach(std::abs(value.exact) + value.error);
    value.error += kUnit * (std::abs(value.exact) + value.error);
  };
  if (terms.beta != 0) {
    const double addend = terms.beta * terms.c;
    add(addend, kUnit * std::abs(addend) + kUnderflow);
  }
  if (terms.has_bias) add(terms.bias, 0);
  return terms.activation == Activation::kNone ? value : Activated(value, terms.activation);
}

}  // namespace tcgemm
