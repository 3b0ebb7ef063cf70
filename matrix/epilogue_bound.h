// What an epilogue makes of one exact element and of the error that it came with.
#ifndef TCGEMM_MATRIX_EPILOGUE_BOUND_H_
#define TCGEMM_MATRIX_EPILOGUE_BOUND_H_

#include "matrix/activation.h"

namespace tcgemm {

// The activation in float64. At -Inf its limit, 0.
double ExactActivation(Activation activation, double x);

// A value that a right kernel holds in fp32, and how far from it the kernel's may be.
struct ValueWithError {
  double exact = 0;
  double error = 0;
  // The most that an intermediate result may be in magnitude, those that are Inf in their own right
  // left out: beyond FLT_MAX one may have become Inf, and what it is added to a NaN.
  double largest = 0;
};

// One element's terms of act(alpha·product + beta·c + bias).
struct EpilogueTerms {
  double alpha = 1;
  double beta = 0;
  double c = 0;  // counts as 0 where beta is 0
  double bias = 0;
  bool has_bias = false;
  Activation activation = Activation::kNone;
};

// The product's value after the epilogue, before it is rounded to D's type. The derivation is in
// epilogue_bound.cc.
ValueWithError ApplyEpilogue(const ValueWithError& product, const EpilogueTerms& terms);

}  // namespace tcgemm

#endif  // TCGEMM_MATRIX_EPILOGUE_BOUND_H_
