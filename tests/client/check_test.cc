#include "client/cli/check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "matrix/bf16.h"
#include "matrix/matrix.h"
#include "matrix/reference.h"

namespace tcgemm::client {
namespace {

using testing::HasSubstr;

TEST(ProveTest, NamesTheWrongElement) {
  Matrix a(70, 64, DType::kBf16), b(64, 30, DType::kBf16), d;
  FillNormal(a, 1);
  FillNormal(b, 2);
  d.Reshape(70, 30, DType::kFp32);
  const Reference reference = ComputeReference(a.view(), b.view()).value();
  for (size_t i = 0; i < reference.elements.size(); ++i) {
    d.data<float>()[i] = static_cast<float>(reference.elements[i].exact);
  }
  EXPECT_TRUE(Prove(a.view(), b.view(), d.view()).value().ok);
  d.data<float>()[50 * 30 + 17] += 0.01f;
  const Proof wrong = Prove(a.view(), b.view(), d.view()).value();
  EXPECT_FALSE(wrong.ok);
  EXPECT_THAT(wrong.text, HasSubstr("D[50,17]"));
}

// Beyond 2^31 products not every element is computed; of ones, the product is known without.
TEST(ProveTest, NamesTheWrongRowOfALargeProduct) {
  constexpr int64_t kSide = 256;
  constexpr int64_t kDeep = 33000;
  Matrix a(kSide, kDeep, DType::kBf16), b(kDeep, kSide, DType::kBf16);
  Matrix d(kSide, kSide, DType::kFp32);
  std::fill_n(a.data<Bf16>(), kSide * kDeep, ToBf16(1));
  std::fill_n(b.data<Bf16>(), kSide * kDeep, ToBf16(1));
  std::fill_n(d.data<float>(), kSide * kSide, static_cast<float>(kDeep));
  const Proof right = Prove(a.view(), b.view(), d.view()).value();
  EXPECT_TRUE(right.ok) << right.text;
  d.data<float>()[100 * kSide + 17] = 1e6;
  const Proof wrong = Prove(a.view(), b.view(), d.view()).value();
  EXPECT_FALSE(wrong.ok) << wrong.text;
  EXPECT_THAT(wrong.text, HasSubstr("row 100"));
}

// With an epilogue: some rows, among them the first and the last.
TEST(ProveTest, ALargeProductWithAnEpilogueIsProvedByRows) {
  constexpr int64_t kSide = 256;
  constexpr int64_t kDeep = 33000;
  Matrix a(kSide, kDeep, DType::kBf16), b(kDeep, kSide, DType::kBf16);
  Matrix d(kSide, kSide, DType::kFp32), bias(kSide, 1, DType::kFp32);
  std::fill_n(a.data<Bf16>(), kSide * kDeep, ToBf16(1));
  std::fill_n(b.data<Bf16>(), kSide * kDeep, ToBf16(1));
  for (int64_t i = 0; i < kSide; ++i) {
    bias.data<float>()[i] = static_cast<float>(i);
    std::fill_n(d.data<float>() + i * kSide, kSide, static_cast<float>(2 * kDeep + i));
  }
  const Epilogue epilogue = {.alpha = 2, .bias = bias.view(), .activation = Activation::kRelu};
  const Proof right = Prove(a.view(), b.view(), d.view(), epilogue).value();
  EXPECT_TRUE(right.ok) << right.text;
  EXPECT_THAT(right.text, HasSubstr("of 256 rows against float64"));
  d.data<float>()[kSide * kSide - 1] += 1000;
  const Proof wrong = Prove(a.view(), b.view(), d.view(), epilogue).value();
  EXPECT_FALSE(wrong.ok) << wrong.text;
  EXPECT_THAT(wrong.text, HasSubstr("row 255"));
}

TEST(ProveTest, ShapesThatDoNotFitAreRefused) {
  const Matrix a(2, 3, DType::kBf16), b(3, 4, DType::kBf16), d(2, 5, DType::kFp32);
  EXPECT_TRUE(absl::IsInvalidArgument(Prove(a.view(), b.view(), d.view()).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(Prove(a.view(), a.view(), d.view()).status()));
  const Matrix right(2, 4, DType::kFp32);
  EXPECT_TRUE(absl::IsInvalidArgument(
      Prove(a.view(), b.view(), right.view(), {.beta = 1, .c = d.view()}).status()));
}

}  // namespace
}  // namespace tcgemm::client
