#include "matrix/reference.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "matrix/matrix.h"
#include "tests/matrix/accumulators.h"

namespace tcgemm {
namespace {

using testing::HasSubstr;

constexpr double kInf = std::numeric_limits<double>::infinity();
const double kNan = std::numeric_limits<double>::quiet_NaN();

struct Shape {
  int64_t m, n, k;
};

// The definition, element by element.
ReferenceElement Naive(const MatrixView& a, const MatrixView& b, int64_t i, int64_t j) {
  ReferenceElement element;
  for (int64_t k = 0; k < a.op_cols(); ++k) {
    if (k % 16 == 0) element.prefix_abs += std::abs(element.exact);
    const double product = ElementAt(a, i, k) * ElementAt(b, k, j);
    element.exact += product;
    element.abs_sum += std::abs(product);
  }
  return element;
}

void ExpectMatchesNaive(const MatrixView& a, const MatrixView& b) {
  const absl::StatusOr<Reference> reference = ComputeReference(a, b);
  ASSERT_TRUE(reference.ok()) << reference.status();
  ASSERT_EQ(reference->m, a.op_rows());
  ASSERT_EQ(reference->n, b.op_cols());
  ASSERT_EQ(reference->k, a.op_cols());
  ASSERT_EQ(reference->elements.size(), static_cast<size_t>(reference->m * reference->n));
  for (int64_t i = 0; i < reference->m; ++i) {
    for (int64_t j = 0; j < reference->n; ++j) {
      const ReferenceElement expected = Naive(a, b, i, j);
      const ReferenceElement& actual = reference->at(i, j);
      const double tolerance = expected.abs_sum * 0x1p-45;
      ASSERT_NEAR(actual.exact, expected.exact, tolerance) << i << "," << j;
      ASSERT_NEAR(actual.abs_sum, expected.abs_sum, tolerance);
      ASSERT_NEAR(actual.prefix_abs, expected.prefix_abs, tolerance * 1000);
    }
  }
}

TEST(ReferenceTest, MatchesTheDefinitionForShapesTypesAndLayouts) {
  // Around the tile of 64 columns and the block of 16.
  const std::vector<Shape> shapes = {{1, 1, 1},   {2, 3, 5},    {7, 64, 16}, {3, 65, 17},
                                     {5, 63, 15}, {4, 130, 33}, {1, 200, 4}, {9, 1, 100}};
  for (const Shape& shape : shapes) {
    for (const DType dtype : {DType::kBf16, DType::kFp32}) {
      for (const bool ta : {false, true}) {
        for (const bool tb : {false, true}) {
          // The gaps of 3 hold NaN: reading one would show.
          Matrix a(ta ? shape.k : shape.m, ta ? shape.m : shape.k, (ta ? shape.m : shape.k) + 3,
                   dtype);
          Matrix b(tb ? shape.n : shape.k, tb ? shape.k : shape.n, (tb ? shape.k : shape.n) + 3,
                   dtype);
          FillNormal(a, 1);
          FillNormal(b, 2);
          ExpectMatchesNaive(ta ? a.transposed_view() : a.view(),
                             tb ? b.transposed_view() : b.view());
        }
      }
    }
  }
}

TEST(ReferenceTest, SomeRowsAreRowsOfTheWhole) {
  Matrix a(10, 20, DType::kBf16), b(20, 70, DType::kBf16);
  FillNormal(a, 1);
  FillNormal(b, 2);
  const Reference whole = *ComputeReference(a.view(), b.view());
  const std::vector<int64_t> rows = {9, 0, 4, 4};
  const Reference some = *ComputeReferenceRows(a.view(), b.view(), rows);
  ASSERT_EQ(some.m, 4);
  for (int64_t r = 0; r < 4; ++r) {
    for (int64_t j = 0; j < 70; ++j) {
      EXPECT_EQ(some.at(r, j).exact, whole.at(rows[r], j).exact);
      EXPECT_EQ(some.at(r, j).prefix_abs, whole.at(rows[r], j).prefix_abs);
    }
  }
}

TEST(ReferenceTest, EmptyInnerDimensionGivesZeros) {
  const Matrix a(2, 0, DType::kBf16), b(0, 3, DType::kBf16);
  const Reference reference = *ComputeReference(a.view(), b.view());
  ASSERT_EQ(reference.elements.size(), 6u);
  EXPECT_EQ(reference.at(1, 2).exact, 0);
  Matrix d(2, 3, DType::kBf16);
  FillBytes(d, 0);
  EXPECT_TRUE(CompareWithReference(d.view(), reference)->ok);
  SetElement(d, 0, 0, 1);
  EXPECT_FALSE(CompareWithReference(d.view(), reference)->ok);
}

TEST(ReferenceTest, RefusesWhatItCannotMultiply) {
  const Matrix a(2, 3, DType::kBf16), b(4, 2, DType::kBf16), bytes(3, 2, DType::kInt8);
  const absl::Status shapes = ComputeReference(a.view(), b.view()).status();
  EXPECT_EQ(shapes.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(shapes.message()), HasSubstr("op(A) is 2x3, op(B) is 4x2"));
  const absl::Status type = ComputeReference(a.view(), bytes.view()).status();
  EXPECT_EQ(type.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(type.message()), HasSubstr("B is int8"));
  const Matrix c(3, 2, DType::kBf16);
  for (const int64_t row : {-1, 2}) {
    EXPECT_EQ(ComputeReferenceRows(a.view(), c.view(), {row}).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
}

// A 1×1 comparison of `value` with an element.
Comparison CompareOne(double value, const ReferenceElement& element, DType dtype) {
  Matrix d(1, 1, dtype);
  SetElement(d, 0, 0, value);
  const Reference reference{.m = 1, .n = 1, .k = 16, .elements = {element}};
  return *CompareWithReference(d.view(), reference);
}

TEST(CompareTest, SpecialValuesMustBeThemselves) {
  for (const DType dtype : {DType::kBf16, DType::kFp32}) {
    EXPECT_TRUE(CompareOne(kNan, {.exact = kNan, .abs_sum = kNan}, dtype).ok);
    EXPECT_FALSE(CompareOne(1, {.exact = kNan, .abs_sum = kNan}, dtype).ok);
    EXPECT_FALSE(CompareOne(kInf, {.exact = kNan, .abs_sum = kNan}, dtype).ok);
    EXPECT_TRUE(CompareOne(kInf, {.exact = kInf, .abs_sum = kInf}, dtype).ok);
    EXPECT_FALSE(CompareOne(-kInf, {.exact = kInf, .abs_sum = kInf}, dtype).ok);
    EXPECT_FALSE(CompareOne(kNan, {.exact = kInf, .abs_sum = kInf}, dtype).ok);
    EXPECT_FALSE(CompareOne(3e38, {.exact = kInf, .abs_sum = kInf}, dtype).ok);
    const Comparison missing = CompareOne(kNan, {.exact = 1, .abs_sum = 1}, dtype);
    EXPECT_FALSE(missing.ok);
    EXPECT_EQ(missing.max_error_ratio, kInf);
    EXPECT_FALSE(CompareOne(kInf, {.exact = 1, .abs_sum = 1}, dtype).ok);
  }
}

TEST(CompareTest, OverflowMayGiveInf) {
  // 3.4e38 rounds to Inf in bf16 but is finite in fp32.
  const ReferenceElement near_top{.exact = 3.4e38, .abs_sum = 3.4e38};
  EXPECT_TRUE(CompareOne(kInf, near_top, DType::kBf16).ok);
  EXPECT_FALSE(CompareOne(-kInf, near_top, DType::kBf16).ok);
  EXPECT_FALSE(CompareOne(kInf, near_top, DType::kFp32).ok);
  const ReferenceElement beyond{.exact = -1e39, .abs_sum = 1e39};
  EXPECT_TRUE(CompareOne(-kInf, beyond, DType::kFp32).ok);
  EXPECT_FALSE(CompareOne(-3e38, beyond, DType::kFp32).ok);
  // A partial sum may have overflowed though the whole does not.
  const ReferenceElement cancelling{.exact = 0, .abs_sum = 1e39};
  EXPECT_TRUE(CompareOne(kNan, cancelling, DType::kFp32).ok);
  EXPECT_TRUE(CompareOne(kInf, cancelling, DType::kBf16).ok);
}

TEST(CompareTest, FindsTheWorstElementAndSaysIt) {
  Matrix a(4, 16, DType::kBf16), b(16, 5, DType::kBf16);
  FillNormal(a, 1);
  FillNormal(b, 2);
  const Reference reference = *ComputeReference(a.view(), b.view());
  Matrix d = Multiply(a.view(), b.view(), DType::kFp32, ChainDot);
  const Comparison right = *CompareWithReference(d.view(), reference);
  EXPECT_TRUE(right.ok);
  EXPECT_LE(right.max_error_ratio, 1);
  SetElement(d, 2, 3, 1000);
  const Comparison wrong = *CompareWithReference(d.view(), reference);
  EXPECT_FALSE(wrong.ok);
  EXPECT_GT(wrong.max_error_ratio, 1);
  EXPECT_EQ(wrong.worst_row, 2);
  EXPECT_EQ(wrong.worst_col, 3);
  EXPECT_EQ(wrong.worst_value, 1000);
  EXPECT_EQ(wrong.worst_exact, reference.at(2, 3).exact);
  EXPECT_THAT(wrong.ToString(), HasSubstr("D[2,3] = 1000 but the exact value is "));
}

TEST(CompareTest, ReadsALeadingDimension) {
  const Reference reference{.m = 2, .n = 1, .k = 1, .elements = {{1, 1, 0}, {2, 2, 0}}};
  Matrix d(2, 1, 4, DType::kFp32);
  FillNormal(d, 1);  // NaN in the gaps
  SetElement(d, 0, 0, 1);
  SetElement(d, 1, 0, 2);
  EXPECT_TRUE(CompareWithReference(d.view(), reference)->ok);
}

TEST(CompareTest, RefusesOtherShapesAndTypes) {
  const Reference reference{.m = 2, .n = 2, .k = 1, .elements = std::vector<ReferenceElement>(4)};
  const Matrix wide(2, 3, DType::kFp32), square(2, 2, DType::kFp32), bytes(2, 2, DType::kInt8);
  for (const MatrixView& d : {wide.view(), square.transposed_view(), bytes.view()}) {
    EXPECT_EQ(CompareWithReference(d, reference).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace tcgemm
