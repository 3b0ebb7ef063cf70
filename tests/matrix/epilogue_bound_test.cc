// The bound with an epilogue: it holds for every machine that we run on, and rejects wrong results.
#include "matrix/epilogue_bound.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "kernels/tile/element_epilogue.h"
#include "matrix/reference.h"
#include "matrix/splitmix.h"
#include "tests/kernels/epilogue_data.h"
#include "tests/matrix/accumulators.h"

namespace tcgemm {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// A product with operands of an epilogue, as a kernel with this dot product and these epilogue
// steps computes it.
struct Product {
  Product(const EpilogueCase& epilogue_case, int64_t k, uint64_t seed, int64_t side = 24)
      : a(side, k, DType::kBf16),
        b(k, side + 1, DType::kBf16),
        data(epilogue_case, {.m = side, .n = side + 1}, 0, seed + 2) {
    FillNormal(a, seed);
    FillNormal(b, seed + 1);
    reference = *ComputeReference(a.view(), b.view());
  }
  EpilogueShape shape() const { return {.m = a.rows(), .n = b.cols()}; }

  Matrix a;
  Matrix b;
  EpilogueData data;
  Reference reference;
};

using Finish = float (*)(const ElementEpilogue&, float sum, float c, float bias);

float AsKernelsDo(const ElementEpilogue& element, float sum, float c, float bias) {
  return element.Apply(sum, c, bias);
}

Matrix Compute(const Product& product, const Matrix& a, DType output,
               double (*dot)(const Products&), Finish finish = AsKernelsDo) {
  const Epilogue epilogue = product.data.View();
  const ElementEpilogue element = {.alpha = epilogue.alpha,
                                   .beta = epilogue.beta,
                                   .reads_c = epilogue.reads_c(),
                                   .has_bias = epilogue.has_bias(),
                                   .activation = epilogue.activation};
  const EpilogueShape shape = product.shape();
  const bool column = epilogue.has_bias() && BiasIsColumn(epilogue.bias, shape);
  Matrix d(shape.m, shape.n, output);
  for (int64_t i = 0; i < shape.m; ++i) {
    for (int64_t j = 0; j < shape.n; ++j) {
      const double sum =
          epilogue.alpha == 0 ? 0 : dot(ProductsOf(a.view(), i, product.b.view(), j));
      const double c = element.reads_c ? ElementAt(epilogue.c, i, j) : 0;
      const double bias =
          element.has_bias ? ElementAt(epilogue.bias, column ? i : 0, column ? 0 : j) : 0;
      SetElement(d, i, j,
                 finish(element, static_cast<float>(sum), static_cast<float>(c),
                        static_cast<float>(bias)));
    }
  }
  return d;
}

Comparison Compare(const Product& product, const Matrix& d) {
  return *CompareWithReference(d.view(), product.reference, product.data.View());
}

// The share of D's elements that are beyond the bound.
double RejectedShare(const Product& product, const Matrix& d) {
  const EpilogueShape shape = product.shape();
  int64_t rejected = 0;
  for (int64_t i = 0; i < shape.m; ++i) {
    for (int64_t j = 0; j < shape.n; ++j) {
      Reference one = {.m = 1, .n = 1, .k = product.reference.k};
      one.elements = {product.reference.at(i, j)};
      Matrix element(1, 1, d.dtype());
      SetElement(element, 0, 0, ElementAt(d.view(), i, j));
      Epilogue epilogue = EpilogueOfRows(product.data.View(), shape, i, 1);
      const auto column_of = [j](MatrixView& view) {
        view.data =
            static_cast<const char*>(view.data) + j * static_cast<int64_t>(DTypeSize(view.dtype));
        view.cols = 1;
      };
      if (epilogue.reads_c()) column_of(epilogue.c);
      if (epilogue.has_bias() && epilogue.bias.cols > 1) column_of(epilogue.bias);
      rejected += !CompareWithReference(element.view(), one, epilogue)->ok;
    }
  }
  return static_cast<double>(rejected) / static_cast<double>(shape.m * shape.n);
}

class EpilogueBoundHolds : public testing::TestWithParam<int64_t> {};
INSTANTIATE_TEST_SUITE_P(K, EpilogueBoundHolds, testing::Values(1, 17, 64, 1000));

TEST_P(EpilogueBoundHolds, ForEveryKindAndAccumulator) {
  for (const EpilogueCase& epilogue_case : EpilogueCases()) {
    const Product product(epilogue_case, GetParam(), 3, 12);
    std::vector<Accumulator> accumulators = AscendingAccumulators();
    for (const Accumulator& other : ReorderedAccumulators()) accumulators.push_back(other);
    for (const Accumulator& accumulator : accumulators) {
      for (const DType output : {DType::kFp32, DType::kBf16}) {
        const Matrix d = Compute(product, product.a, output, accumulator.dot);
        const Comparison comparison = Compare(product, d);
        EXPECT_TRUE(comparison.ok) << epilogue_case.ToString() << ", " << accumulator.name << ": "
                                   << comparison.ToString();
      }
    }
  }
}

// One value with the most error, through every activation, over many magnitudes.
TEST(EpilogueBoundTest, HoldsAtTheEndsOfTheError) {
  for (int exponent = -30; exponent < 8; ++exponent) {
    for (uint64_t seed = 0; seed < 200; ++seed) {
      const double mantissa = 1 + static_cast<double>(RandomBits(seed, 1) >> 11) * 0x1p-53;
      const double x = std::ldexp(seed % 2 == 0 ? mantissa : -mantissa, exponent);
      const double error = std::ldexp(std::abs(x), -static_cast<int>(RandomBits(seed, 2) % 24));
      for (const Activation activation :
           {Activation::kRelu, Activation::kGelu, Activation::kSilu}) {
        const ValueWithError result =
            ApplyEpilogue({.exact = x, .error = error, .largest = 1}, {.activation = activation});
        for (const double at : {x - error, x - error / 2, x, x + error / 3, x + error}) {
          const float computed = Activate(activation, static_cast<float>(at));
          // Rounding `at` is not the activation's error.
          const double slack = std::abs(at) * 0x1p-23;
          EXPECT_LE(std::abs(computed - result.exact), result.error + slack)
              << ActivationName(activation) << " " << x << " ± " << error << " at " << at;
        }
      }
    }
  }
}

TEST(EpilogueBoundTest, IsNotMuchWiderThanTheProducts) {
  const ValueWithError product = {.exact = 3, .error = 0x1p-20, .largest = 5};
  const ValueWithError scaled = ApplyEpilogue(product, {.alpha = 2});
  EXPECT_EQ(scaled.exact, 6);
  EXPECT_NEAR(scaled.error, 0x1p-19 + 6 * 0x1p-24, 1e-12);
  EXPECT_EQ(scaled.largest, 10);
  const ValueWithError added =
      ApplyEpilogue(product, {.beta = 3, .c = 4, .bias = -8, .has_bias = true});
  EXPECT_EQ(added.exact, 7);
  EXPECT_NEAR(added.error, 0x1p-20 + (12 + 15 + 7) * 0x1p-24, 1e-11);
  // Where SiLU and GELU are flat, so is the bound; nowhere more than 1.13 times the error.
  for (const Activation activation : {Activation::kGelu, Activation::kSilu}) {
    for (double x = -20; x < 20; x += 0.01) {
      const ValueWithError wide =
          ApplyEpilogue({.exact = x, .error = 1e-3}, {.activation = activation});
      EXPECT_LE(wide.error, 1.13e-3 + 0x1p-20 * (std::abs(wide.exact) + 1.2e-3) + 1e-30);
      if (x < -10) {
        EXPECT_LE(wide.error, 1e-3 * 1e-3);
      }
    }
  }
  EXPECT_EQ(ApplyEpilogue({.exact = -3, .error = 1}, {.activation = Activation::kRelu}).error, 0);
  EXPECT_EQ(ApplyEpilogue({.exact = -3, .error = 4}, {.activation = Activation::kRelu}).error, 1);
  EXPECT_EQ(ApplyEpilogue({.exact = 3, .error = 4}, {.activation = Activation::kRelu}).error, 4);
}

// ---- What must be rejected ----

// A's columns [first, first + 16) are lost.
Matrix WithoutStep(const Product& product, int64_t first) {
  Matrix a(product.a.rows(), product.a.cols(), DType::kBf16);
  for (int64_t i = 0; i < a.rows(); ++i) {
    for (int64_t k = 0; k < a.cols(); ++k) {
      const bool lost = k >= first && k < first + 16;
      SetElement(a, i, k, lost ? 0 : ElementAt(product.a.view(), i, k));
    }
  }
  return a;
}

TEST(EpilogueBoundRejects, ALostStepOfK) {
  for (const EpilogueCase& epilogue_case : EpilogueCases()) {
    if (epilogue_case.alpha == 0) continue;  // no step is missed where none counts
    for (const int64_t k : {64, 1024}) {
      const Product product(epilogue_case, k, 5);
      // ReLU hides all that is below zero, and GELU what is far below.
      const bool flat = epilogue_case.activation != Activation::kNone;
      for (const DType output : {DType::kFp32, DType::kBf16}) {
        ASSERT_EQ(RejectedShare(product, Compute(product, product.a, output, HopperDot)), 0);
        const Matrix wrong = Compute(product, WithoutStep(product, k / 2), output, HopperDot);
        EXPECT_GE(RejectedShare(product, wrong), flat ? 0.4 : 0.8)
            << epilogue_case.ToString() << ", k = " << k << " " << DTypeName(output);
        EXPECT_FALSE(Compare(product, wrong).ok);
      }
    }
  }
}

void ExpectRejected(const EpilogueCase& epilogue_case, Finish wrong, const char* what,
                    double least_share = 0.5) {
  for (const DType output : {DType::kFp32, DType::kBf16}) {
    const Product product(epilogue_case, 256, 7);
    const Matrix d = Compute(product, product.a, output, HopperDot, wrong);
    EXPECT_GE(RejectedShare(product, d), least_share) << what << " " << DTypeName(output);
  }
}

TEST(EpilogueBoundRejects, WrongEpilogues) {
  const EpilogueCase all = {.alpha = 0.3f,
                            .beta = 0.7f,
                            .c_dtype = DType::kFp32,
                            .bias = BiasAxis::kRow,
                            .bias_dtype = DType::kFp32};
  ExpectRejected(
      all, [](const ElementEpilogue& e, float sum, float c, float) { return e.Linear(sum, c, 0); },
      "no bias");
  ExpectRejected(
      all,
      [](const ElementEpilogue& e, float sum, float, float bias) { return e.Linear(sum, 0, bias); },
      "no C");
  ExpectRejected(
      all,
      [](const ElementEpilogue& e, float sum, float c, float bias) {
        return e.Linear(sum / e.alpha, c, bias);
      },
      "no alpha");
  ExpectRejected(
      all,
      [](const ElementEpilogue& e, float sum, float c, float bias) {
        return e.Linear(sum, c / e.beta, bias);
      },
      "no beta");
  ExpectRejected(
      all,
      [](const ElementEpilogue& e, float sum, float c, float bias) {
        return e.Linear(sum, c, bias) * 1.02f;
      },
      "2 % too much");
  ExpectRejected(
      {.activation = Activation::kRelu},
      [](const ElementEpilogue& e, float sum, float c, float bias) {
        return e.Linear(sum, c, bias);
      },
      "no ReLU", 0.4);
  ExpectRejected(
      {.activation = Activation::kSilu},
      [](const ElementEpilogue&, float sum, float, float) { return Gelu(sum); }, "GELU for SiLU",
      0.05);
}

// The tanh form, which is not ours, is off by up to 5e-4: fp32 shows it.
TEST(EpilogueBoundRejects, TheOtherGelu) {
  const Product product({.alpha = 0.1f, .activation = Activation::kGelu}, 256, 7);
  const Matrix d = Compute(product, product.a, DType::kFp32, HopperDot,
                           [](const ElementEpilogue& e, float sum, float, float) {
                             const float x = e.alpha * sum;
                             const float inner = 0.7978845608f * (x + 0.044715f * x * x * x);
                             return 0.5f * x * (1 + std::tanh(inner));
                           });
  EXPECT_FALSE(Compare(product, d).ok);
  EXPECT_GE(RejectedShare(product, d), 0.5);
}

// ---- NaN, Inf and overflow ----

Comparison CompareOne(double value, double product, const Epilogue& epilogue) {
  Reference reference = {.m = 1, .n = 1, .k = 1};
  reference.elements = {{.exact = product, .abs_sum = std::abs(product)}};
  Matrix d(1, 1, DType::kFp32);
  SetElement(d, 0, 0, value);
  return *CompareWithReference(d.view(), reference, epilogue);
}

TEST(EpilogueBoundTest, NansAndInfinitiesTravel) {
  Matrix c(1, 1, DType::kFp32);
  Epilogue epilogue = {.beta = 1, .c = c.view()};
  SetElement(c, 0, 0, kNan);
  EXPECT_TRUE(CompareOne(kNan, 1, epilogue).ok);
  EXPECT_FALSE(CompareOne(1, 1, epilogue).ok);
  SetElement(c, 0, 0, -kInf);
  EXPECT_TRUE(CompareOne(-kInf, 1, epilogue).ok);
  EXPECT_FALSE(CompareOne(kInf, 1, epilogue).ok);
  EXPECT_FALSE(CompareOne(kNan, 1, epilogue).ok);
  EXPECT_TRUE(CompareOne(kNan, kInf, epilogue).ok);
  for (const Activation activation : {Activation::kRelu, Activation::kGelu, Activation::kSilu}) {
    epilogue.activation = activation;
    EXPECT_TRUE(CompareOne(0, 1, epilogue).ok);
    EXPECT_FALSE(CompareOne(-1e-30, 1, epilogue).ok);
    EXPECT_FALSE(CompareOne(kNan, 1, epilogue).ok);
  }
}

TEST(EpilogueBoundTest, AlphaZeroHidesTheProduct) {
  EXPECT_TRUE(CompareOne(0, kNan, {.alpha = 0}).ok);
  EXPECT_FALSE(CompareOne(kNan, kNan, {.alpha = 0}).ok);
  EXPECT_FALSE(CompareOne(1e-30, 5, {.alpha = 0}).ok);
}

TEST(EpilogueBoundTest, AnIntermediateOverflowExcusesWhatFollows) {
  Matrix c(1, 1, DType::kFp32);
  SetElement(c, 0, 0, -3e38);
  Epilogue epilogue = {.alpha = 2, .beta = 2, .c = c.view()};
  // 6e38 - 6e38 is 0, and in fp32 Inf - Inf.
  EXPECT_TRUE(CompareOne(kNan, 3e38, epilogue).ok);
  EXPECT_TRUE(CompareOne(0, 3e38, epilogue).ok);
  EXPECT_FALSE(CompareOne(1e37, 3e38, epilogue).ok);
  epilogue.activation = Activation::kRelu;
  EXPECT_TRUE(CompareOne(0, 3.1e38, epilogue).ok);
  // No overflow, no excuse.
  epilogue = {.alpha = 2, .beta = 0.5f, .c = c.view()};
  EXPECT_FALSE(CompareOne(kNan, 1e38, epilogue).ok);
}

TEST(EpilogueBoundTest, RefusesAnotherShape) {
  Matrix c(2, 1, DType::kFp32);
  Matrix d(1, 1, DType::kFp32);
  Reference reference = {.m = 1, .n = 1, .k = 1, .elements = {{}}};
  EXPECT_TRUE(absl::IsInvalidArgument(
      CompareWithReference(d.view(), reference, {.beta = 1, .c = c.view()}).status()));
}

}  // namespace
}  // namespace tcgemm
