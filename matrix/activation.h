// The function that an epilogue ends with. Plain data: device code includes it too.
#ifndef TCGEMM_MATRIX_ACTIVATION_H_
#define TCGEMM_MATRIX_ACTIVATION_H_

#include <cstdint>

namespace tcgemm {

// The numbers are those of tcgemm.v1.Activation.
enum class Activation : uint8_t {
  kNone = 0,
  kRelu = 1,  // max(x, 0)
  kGelu = 2,  // x·Φ(x), Φ the normal distribution function: the erf form, not the tanh one
  kSilu = 3,  // x / (1 + e^-x)
};

// "none", "relu", "gelu", "silu".
constexpr const char* ActivationName(Activation activation) {
  switch (activation) {
    case Activation::kNone:
      return "none";
    case Activation::kRelu:
      return "relu";
    case Activation::kGelu:
      return "gelu";
    case Activation::kSilu:
      return "silu";
  }
  return "?";
}

}  // namespace tcgemm

#endif  // TCGEMM_MATRIX_ACTIVATION_H_
