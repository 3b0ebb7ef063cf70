// The bound on rounding holds for every machine that we run on, and rejects wrong results.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "matrix/matrix.h"
#include "matrix/reference.h"
#include "matrix/rounding.h"
#include "matrix/splitmix.h"
#include "tests/matrix/accumulators.h"

namespace tcgemm {
namespace {

// What ComputeReference computes, from the products.
ReferenceElement ElementOf(const Products& products) {
  ReferenceElement element;
  for (size_t k = 0; k < products.size(); ++k) {
    if (k % 16 == 0) element.prefix_abs += std::abs(element.exact);
    element.exact += products[k];
    element.abs_sum += std::abs(products[k]);
  }
  return element;
}

double RatioToBound(const Accumulator& accumulator, const Products& products, DType output) {
  const ReferenceElement element = ElementOf(products);
  double value = accumulator.dot(products);
  if (output == DType::kBf16) value = ToFloat(ToBf16(static_cast<float>(value)));
  const double error = std::abs(value - element.exact);
  if (error == 0) return 0;
  return error / ErrorBound(element, static_cast<int64_t>(products.size()), output);
}

// bf16 factors drawn by `draw(k)`.
template <typename Draw>
Products Fill(int64_t k, Draw draw) {
  Products products(k);
  for (int64_t i = 0; i < k; ++i) products[i] = draw(i);
  return products;
}

double Uniform(uint64_t seed, uint64_t index) {  // [1, 2) with bf16's eight bits
  return 1 + static_cast<double>(RandomBits(seed, index) >> 57) / 128;
}

struct Data {
  std::string name;
  Products (*make)(int64_t k, uint64_t seed);
};

std::vector<Data> AllData() {
  return {
      {"normal",
       [](int64_t k, uint64_t seed) {
         Matrix a(1, k, DType::kBf16), b(k, 1, DType::kBf16);
         FillNormal(a, seed);
         FillNormal(b, seed + 1000);
         return ProductsOf(a.view(), 0, b.view(), 0);
       }},
      {"one sign",
       [](int64_t k, uint64_t seed) {
         return Fill(k, [=](int64_t i) { return Uniform(seed, i) * Uniform(seed + 1, i); });
       }},
      {"one value",
       [](int64_t k, uint64_t seed) {
         const double value = Uniform(seed, 0) * Uniform(seed, 1);
         return Fill(k, [=](int64_t) { return value; });
       }},
      {"alternating, cancelling",
       [](int64_t k, uint64_t seed) {
         return Fill(k, [=](int64_t i) {
           return (i % 2 == 0 ? 1 : -1) * Uniform(seed, i / 2) * Uniform(seed + 1, i / 2);
         });
       }},
      {"up, then down",
       [](int64_t k, uint64_t seed) {
         return Fill(k, [=](int64_t i) {
           return (i < k / 2 ? 1 : -1) * Uniform(seed, i) * Uniform(seed + 1, i);
         });
       }},
      {"big, then below half an ulp",
       [](int64_t k, uint64_t) {
         return Fill(k, [](int64_t i) { return i == 0 ? 0x1p24 : 0.875; });
       }},
      {"big, then below Hopper's last bit",
       [](int64_t k, uint64_t) {
         return Fill(k, [](int64_t i) { return i == 0 ? -0x1p24 : -0.4375; });
       }},
      {"many magnitudes",
       [](int64_t k, uint64_t seed) {
         return Fill(k, [=](int64_t i) {
           const uint64_t bits = RandomBits(seed + 2, i);
           const double sign = (bits & 1) != 0 ? 1 : -1;
           return sign * std::ldexp(Uniform(seed, i), static_cast<int>(bits >> 1) % 60);
         });
       }},
      {"subnormal products",
       [](int64_t k, uint64_t seed) {
         return Fill(k, [=](int64_t i) { return std::ldexp(Uniform(seed, i), -133); });
       }},
  };
}

class BoundHolds : public testing::TestWithParam<int64_t> {};
INSTANTIATE_TEST_SUITE_P(K, BoundHolds, testing::Values(1, 2, 15, 16, 17, 64, 1000, 4096, 65536));

void ExpectWithinBound(const std::vector<Accumulator>& accumulators, int64_t k) {
  for (const Data& data : AllData()) {
    for (uint64_t seed = 1; seed <= (k > 10'000 ? 3 : 20); ++seed) {
      const Products products = data.make(k, seed);
      for (const Accumulator& accumulator : accumulators) {
        for (const DType output : {DType::kFp32, DType::kBf16}) {
          EXPECT_LE(RatioToBound(accumulator, products, output), 1)
              << accumulator.name << " on " << data.name << ", k = " << k << ", seed " << seed
              << ", output " << DTypeName(output);
        }
      }
    }
  }
}

TEST_P(BoundHolds, InAscendingOrder) { ExpectWithinBound(AscendingAccumulators(), GetParam()); }

TEST_P(BoundHolds, InOtherOrdersOnDataNotMadeToBreakIt) {
  ExpectWithinBound(ReorderedAccumulators(), GetParam());
}

TEST(BoundTest, IsReachedWithinAFactorOfThree) {
  const auto big_then = [](double small) {
    return Fill(4096, [small](int64_t i) { return i == 0 ? 0x1p24 : small; });
  };
  const std::vector<Accumulator> ascending = AscendingAccumulators();
  // Every product is cut off: the claim of 20·u per block is that tight.
  EXPECT_GT(RatioToBound(ascending[0], big_then(0.4375), DType::kFp32), 0.33);
  EXPECT_GT(RatioToBound(ascending[1], big_then(0.875), DType::kFp32), 0.66);
  EXPECT_GT(RatioToBound(ascending[2], big_then(0.875), DType::kFp32), 0.66);
}

TEST(BoundTest, HoldsForAnyFiniteProducts) {
  EXPECT_TRUE(rc::check("ascending order", [] {
    const auto factors = *rc::gen::container<std::vector<uint32_t>>(rc::gen::arbitrary<uint32_t>());
    Products products;
    for (const uint32_t factor : factors) {
      // Two bf16 of 2^-64 … 2^58: their sums neither overflow nor are all alike.
      const auto bf16 = [](uint32_t bits) {
        const uint32_t exponent = 63 + ((bits >> 7) & 0xff) % 123;
        return double{ToFloat(Bf16{static_cast<uint16_t>((bits & 0x807f) | (exponent << 7))})};
      };
      products.push_back(bf16(factor) * bf16(factor >> 16));
    }
    for (const Accumulator& accumulator : AscendingAccumulators()) {
      RC_ASSERT(RatioToBound(accumulator, products, DType::kFp32) <= 1);
      RC_ASSERT(RatioToBound(accumulator, products, DType::kBf16) <= 1);
    }
  }));
}

TEST(BoundTest, HalfUlpOfBf16) {
  EXPECT_EQ(HalfUlpBf16(1), 0x1p-8);
  EXPECT_EQ(HalfUlpBf16(std::nextafter(2.0, 0.0)), 0x1p-8);
  EXPECT_EQ(HalfUlpBf16(2), 0x1p-7);
  EXPECT_EQ(HalfUlpBf16(0), 0x1p-134);
  EXPECT_EQ(HalfUlpBf16(0x1p-130), 0x1p-134);
  EXPECT_EQ(HalfUlpBf16(0x1p-126), 0x1p-134);
  EXPECT_EQ(HalfUlpBf16(0x1p-125), 0x1p-133);
}

// --- What must be rejected ---

struct Product {
  Product(int64_t k, int64_t side) : a(side, k, DType::kBf16), b(k, side, DType::kBf16) {
    FillNormal(a, 11);
    FillNormal(b, 12);
    reference = *ComputeReference(a.view(), b.view());
  }
  Matrix a;
  Matrix b;
  Reference reference;
};

// The share of D's elements that are off by more than their bounds.
double RejectedShare(const Matrix& d, const Reference& reference) {
  int64_t rejected = 0;
  for (int64_t i = 0; i < d.rows(); ++i) {
    for (int64_t j = 0; j < d.cols(); ++j) {
      const ReferenceElement& element = reference.at(i, j);
      rejected += std::abs(ElementAt(d.view(), i, j) - element.exact) >
                  ErrorBound(element, reference.k, d.dtype());
    }
  }
  return static_cast<double>(rejected) / static_cast<double>(d.rows() * d.cols());
}

// The right product of A with columns [first, first + count) of A lost.
Matrix WithoutColumns(const Product& product, int64_t first, int64_t count, DType output) {
  Matrix a(product.a.rows(), product.a.cols(), DType::kBf16);
  for (int64_t i = 0; i < a.rows(); ++i) {
    for (int64_t k = 0; k < a.cols(); ++k) {
      const bool lost = k >= first && k < first + count;
      SetElement(a, i, k, lost ? 0 : ElementAt(product.a.view(), i, k));
    }
  }
  return Multiply(a.view(), product.b.view(), output, HopperDot);
}

struct Rejection {
  int64_t k;
  double lost_element;  // the least share of elements that show one lost k, fp32 output
  double lost_step;     // … a lost k16 step
  double lost_step_bf16;
};
// The name of the test case, in place of the bytes of the struct.
void PrintTo(const Rejection& rejection, std::ostream* out) { *out << "k=" << rejection.k; }

class BoundRejects : public testing::TestWithParam<Rejection> {};
INSTANTIATE_TEST_SUITE_P(K, BoundRejects,
                         testing::Values(Rejection{64, 0.99, 0.99, 0.95},
                                         Rejection{1024, 0.97, 0.99, 0.9},
                                         Rejection{4096, 0.93, 0.99, 0.85}));

TEST_P(BoundRejects, WhatIsNotRight) {
  const Rejection& expected = GetParam();
  const Product product(expected.k, 48);
  const auto share = [&](int64_t first, int64_t count, DType output) {
    return RejectedShare(WithoutColumns(product, first, count, output), product.reference);
  };
  EXPECT_EQ(share(0, 0, DType::kFp32), 0);
  EXPECT_EQ(share(0, 0, DType::kBf16), 0);
  EXPECT_GE(share(expected.k / 2 + 3, 1, DType::kFp32), expected.lost_element);
  for (const int64_t first : {int64_t{0}, expected.k / 2, expected.k - 16}) {
    EXPECT_GE(share(first, 16, DType::kFp32), expected.lost_step);
    EXPECT_GE(share(first, 16, DType::kBf16), expected.lost_step_bf16);
  }
  const Matrix wrong = WithoutColumns(product, 16, 16, DType::kBf16);
  EXPECT_FALSE(CompareWithReference(wrong.view(), product.reference)->ok);
}

TEST(BoundRejectsTest, TwoUlpsOfBf16) {
  const Product product(1024, 48);
  Matrix d = Multiply(product.a.view(), product.b.view(), DType::kBf16, HopperDot);
  ASSERT_EQ(RejectedShare(d, product.reference), 0);
  for (const int ulps : {2, -2}) {
    Matrix wrong(48, 48, DType::kBf16);
    for (int64_t i = 0; i < 48 * 48; ++i) {
      wrong.data<Bf16>()[i].bits = static_cast<uint16_t>(d.data<Bf16>()[i].bits + ulps);
    }
    // All but those that nearly cancelled, whose ulp is below the accumulation's error.
    EXPECT_GE(RejectedShare(wrong, product.reference), 0.98);
  }
  // One changed element among many right ones.
  const int64_t largest = std::max_element(d.data<Bf16>(), d.data<Bf16>() + 48 * 48,
                                           [](Bf16 x, Bf16 y) { return ToFloat(x) < ToFloat(y); }) -
                          d.data<Bf16>();
  d.data<Bf16>()[largest].bits += 2;
  const Comparison comparison = *CompareWithReference(d.view(), product.reference);
  EXPECT_FALSE(comparison.ok);
  EXPECT_EQ(comparison.worst_row * 48 + comparison.worst_col, largest);
}

}  // namespace
}  // namespace tcgemm
