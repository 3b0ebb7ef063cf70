// GELU and SiLU over floats of all sizes, against float64.
#include "kernels/tile/activation.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "kernels/tile/element_epilogue.h"
#include "matrix/epilogue_bound.h"

namespace tcgemm {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

// What matrix/epilogue_bound.cc counts with, and activation.h promises.
constexpr double kRelative = 0x1p-20;
constexpr double kAbsolute = 0x1p-118;

// All floats were tried once: GELU is within 2^-21.03 of itself, SiLU within 2^-21.88; here one in
// 4099, which is prime, so that every exponent and every kind of mantissa comes.
void ExpectAccurate(Activation activation) {
  double worst = 0;
  for (uint64_t bits = 0; bits < uint64_t{1} << 32; bits += 4099) {
    const float x = std::bit_cast<float>(static_cast<uint32_t>(bits));
    if (!std::isfinite(x)) continue;
    const double exact = ExactActivation(activation, x);
    const double error = std::abs(Activate(activation, x) - exact);
    ASSERT_LE(error, kRelative * std::abs(exact) + kAbsolute) << x;
    if (std::abs(exact) > 0x1p-90) worst = std::max(worst, error / std::abs(exact));
  }
  // If it is much better than it says, the bound should say so.
  EXPECT_GT(worst, kRelative / 8);
}

TEST(ActivationTest, GeluIsAsAccurateAsItSays) { ExpectAccurate(Activation::kGelu); }
TEST(ActivationTest, SiluIsAsAccurateAsItSays) { ExpectAccurate(Activation::kSilu); }

TEST(ActivationTest, AroundTheEndsOfTheirRanges) {
  for (const float end : {13.0f, 87.0f}) {
    float x = end - 0x1p-10f;
    for (int i = 0; i < 1000; ++i, x = std::nextafter(x, kInf)) {
      for (const float signed_x : {x, -x}) {
        for (const Activation activation : {Activation::kGelu, Activation::kSilu}) {
          const double exact = ExactActivation(activation, signed_x);
          ASSERT_NEAR(Activate(activation, signed_x), exact,
                      kRelative * std::abs(exact) + kAbsolute);
        }
      }
    }
  }
}

TEST(ActivationTest, ExactActivationsAreTheFormulas) {
  EXPECT_EQ(ExactActivation(Activation::kNone, -3.5), -3.5);
  EXPECT_EQ(ExactActivation(Activation::kRelu, -3.5), 0);
  EXPECT_EQ(ExactActivation(Activation::kRelu, 3.5), 3.5);
  EXPECT_NEAR(ExactActivation(Activation::kGelu, 1), 0.8413447460685429, 1e-15);
  EXPECT_NEAR(ExactActivation(Activation::kGelu, -2), -0.04550026389635842, 1e-15);
  EXPECT_NEAR(ExactActivation(Activation::kSilu, 1), 0.7310585786300049, 1e-15);
  EXPECT_NEAR(ExactActivation(Activation::kSilu, -2), -0.2384058440442351, 1e-15);
}

TEST(ActivationTest, NansInfinitiesAndZeros) {
  for (const Activation activation : {Activation::kRelu, Activation::kGelu, Activation::kSilu}) {
    EXPECT_TRUE(std::isnan(Activate(activation, std::nanf(""))));
    EXPECT_EQ(Activate(activation, kInf), kInf);
    EXPECT_EQ(Activate(activation, -kInf), 0);
    EXPECT_EQ(ExactActivation(activation, -kInf), 0);
    EXPECT_EQ(Activate(activation, 0.0f), 0);
    EXPECT_EQ(Activate(activation, -0.0f), 0);
    EXPECT_EQ(Activate(activation, -3e38f), 0);
    EXPECT_EQ(Activate(activation, 3e38f), 3e38f);
    EXPECT_EQ(Activate(activation, 0x1p-149f) >= 0, true);
  }
  EXPECT_EQ(Relu(-1), 0);
  EXPECT_EQ(Relu(0x1p-149f), 0x1p-149f);
}

TEST(ElementEpilogueTest, RoundsAfterEachStep) {
  ElementEpilogue element = {.alpha = 3};
  EXPECT_EQ(element.Apply(5, 7, 11), 15);
  element.beta = 2;
  element.reads_c = true;
  EXPECT_EQ(element.Apply(5, 7, 11), 29);
  element.has_bias = true;
  EXPECT_EQ(element.Apply(5, 7, 11), 40);
  element.activation = Activation::kRelu;
  EXPECT_EQ(element.Apply(-50, 7, 11), 0);
  // (1 + 2^-24) - 1: a fused multiply-add would keep the 2^-24, two roundings do not.
  element = {.beta = 0x1.000002p0f, .reads_c = true};
  EXPECT_EQ(element.Linear(-1, 0x1.fffffep-1f, 0), 0);
}

}  // namespace
}  // namespace tcgemm
