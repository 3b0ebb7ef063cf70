// From an element's sum to the value that is rounded to D's type: the steps of matrix/epilogue.h,
// for every kernel and for the tests that foretell their bits.
#ifndef TCGEMM_KERNELS_TILE_ELEMENT_EPILOGUE_H_
#define TCGEMM_KERNELS_TILE_ELEMENT_EPILOGUE_H_

#include "kernels/tile/activation.h"
#include "kernels/tile/host_device.h"

namespace tcgemm {

struct ElementEpilogue {
  float alpha = 1;
  float beta = 0;
  bool reads_c = false;
  bool has_bias = false;
  Activation activation = Activation::kNone;

  // Without the activation; c and bias count where they are read.
  TCGEMM_HD float Linear(float sum, float c, float bias) const {
    float value = MultiplyRn(alpha, sum);
    if (reads_c) value = AddRn(value, MultiplyRn(beta, c));
    if (has_bias) value = AddRn(value, bias);
    return value;
  }
  TCGEMM_HD float Apply(float sum, float c, float bias) const {
    return Activate(activation, Linear(sum, c, bias));
  }
};

}  // namespace tcgemm

#endif  // TCGEMM_KERNELS_TILE_ELEMENT_EPILOGUE_H_
