#include "matrix/matrix.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <set>
#include <utility>

#include "matrix/bf16.h"

namespace tcgemm {
namespace {

TEST(DTypeTest, SizesAndNames) {
  EXPECT_EQ(DTypeSize(DType::kBf16), 2u);
  EXPECT_EQ(DTypeSize(DType::kFp32), 4u);
  EXPECT_EQ(DTypeSize(DType::kInt8), 1u);
  EXPECT_EQ(DTypeSize(DType::kInt32), 4u);
  EXPECT_EQ(DTypeName(DType::kBf16), "bf16");
  EXPECT_EQ(DTypeName(DType::kInt32), "int32");
}

TEST(MatrixViewTest, SpanEndsWithTheLastRow) {
  const MatrixView view{nullptr, 3, 5, 8, DType::kFp32, false};
  EXPECT_EQ(view.span_elements(), 2 * 8 + 5);
  EXPECT_EQ(view.span_bytes(), 4u * 21);
  EXPECT_EQ((MatrixView{nullptr, 0, 5, 8, DType::kFp32, false}.span_elements()), 0);
  EXPECT_EQ((MatrixView{nullptr, 3, 0, 8, DType::kFp32, false}.span_elements()), 0);
}

TEST(MatrixViewTest, IndicesBeyond32Bits) {
  const MatrixView view{nullptr, 100'000, 100'000, 100'000, DType::kBf16, true};
  EXPECT_EQ(view.IndexOf(99'999, 99'999), 9'999'999'999);
  EXPECT_EQ(view.span_bytes(), 20'000'000'000u);
}

TEST(MatrixViewTest, IndexingIsABijectionIntoTheSpanAndTransposesSwap) {
  EXPECT_TRUE(rc::check("indexing", [] {
    const int64_t rows = *rc::gen::inRange<int64_t>(1, 12);
    const int64_t cols = *rc::gen::inRange<int64_t>(1, 12);
    const int64_t ld = cols + *rc::gen::inRange<int64_t>(0, 4);
    const bool transposed = *rc::gen::arbitrary<bool>();
    const MatrixView view{nullptr, rows, cols, ld, DType::kBf16, transposed};
    MatrixView other = view;
    other.transposed = !transposed;
    RC_ASSERT(view.op_rows() == other.op_cols() && view.op_cols() == other.op_rows());
    std::set<int64_t> seen;
    for (int64_t i = 0; i < view.op_rows(); ++i) {
      for (int64_t j = 0; j < view.op_cols(); ++j) {
        const int64_t index = view.IndexOf(i, j);
        RC_ASSERT(index >= 0 && index < view.span_elements());
        RC_ASSERT(index == other.IndexOf(j, i));
        RC_ASSERT(seen.insert(index).second);
      }
    }
    RC_ASSERT(*seen.rbegin() == view.span_elements() - 1);
  }));
}

TEST(MatrixTest, IsAlignedAndDense) {
  for (int64_t n : {1, 3, 17, 1000}) {
    Matrix matrix(n, n + 1, DType::kBf16);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(matrix.data<Bf16>()) % 64, 0u);
    EXPECT_EQ(matrix.ld(), n + 1);
    EXPECT_EQ(matrix.bytes(), static_cast<size_t>(2 * n * (n + 1)));
  }
}

TEST(MatrixTest, EmptyNeedsNoMemory) {
  Matrix matrix(0, 5, DType::kFp32);
  EXPECT_EQ(matrix.bytes(), 0u);
  FillNormal(matrix, 1);
  FillBytes(matrix, 0xff);
  EXPECT_EQ(Matrix().bytes(), 0u);
}

TEST(MatrixTest, ViewsShareTheStorage) {
  Matrix matrix(2, 3, 4, DType::kFp32);
  FillBytes(matrix, 0);
  const MutableMatrixView view = matrix.mutable_view();
  static_cast<float*>(view.data)[view.IndexOf(1, 2)] = 7;
  EXPECT_EQ(matrix.data<float>()[6], 7);
  EXPECT_EQ(ElementAt(matrix.view(), 1, 2), 7);
  EXPECT_EQ(ElementAt(matrix.transposed_view(), 2, 1), 7);
  EXPECT_EQ(ElementAt(AsConst(view), 1, 2), 7);
  EXPECT_EQ(matrix.transposed_view().op_rows(), 3);
}

TEST(MatrixTest, ReshapeKeepsMemoryThatIsLargeEnough) {
  Matrix matrix(8, 8, DType::kFp32);
  const float* memory = matrix.data<float>();
  matrix.Reshape(4, 4, DType::kBf16);
  EXPECT_EQ(matrix.data<float>(), memory);
  EXPECT_EQ(matrix.rows(), 4);
  EXPECT_EQ(matrix.ld(), 4);
  EXPECT_EQ(matrix.dtype(), DType::kBf16);
  matrix.Reshape(8, 8, DType::kFp32);
  EXPECT_EQ(matrix.data<float>(), memory);
  matrix.Reshape(100, 100, DType::kFp32);
  FillBytes(matrix, 1);  // all 40,000 bytes are there
}

TEST(MatrixTest, AMovedFromMatrixCanBeUsedAgain) {
  Matrix first(4, 4, DType::kFp32);
  Matrix second = std::move(first);
  first.Reshape(2, 2, DType::kFp32);
  FillNormal(first, 1);
  FillNormal(second, 1);
  EXPECT_EQ(ElementAt(first.view(), 0, 1), ElementAt(second.view(), 0, 1));
}

TEST(MatrixTest, ElementAtReadsEveryType) {
  Matrix matrix(1, 2, DType::kInt8);
  FillBytes(matrix, 0xfe);
  EXPECT_EQ(ElementAt(matrix.view(), 0, 1), -2);
  matrix.Reshape(1, 2, DType::kInt32);
  FillBytes(matrix, 0xff);
  EXPECT_EQ(ElementAt(matrix.view(), 0, 1), -1);
  matrix.Reshape(1, 2, DType::kBf16);
  matrix.data<Bf16>()[1] = ToBf16(-0.5f);
  EXPECT_EQ(ElementAt(matrix.view(), 0, 1), -0.5);
}

TEST(FillNormalTest, IsStandardNormal) {
  constexpr int64_t kSide = 512;
  Matrix matrix(kSide, kSide, DType::kFp32);
  FillNormal(matrix, 7);
  double sum = 0, squares = 0, fourth = 0, neighbours = 0;
  int beyond_two = 0;
  const float* x = matrix.data<float>();
  for (int64_t i = 0; i < kSide * kSide; ++i) {
    sum += x[i];
    squares += x[i] * x[i];
    fourth += std::pow(x[i], 4);
    beyond_two += std::abs(x[i]) > 2;
    if (i > 0) neighbours += x[i] * x[i - 1];
  }
  const double n = kSide * kSide;
  // Five standard deviations of each statistic.
  EXPECT_NEAR(sum / n, 0, 5 / std::sqrt(n));
  EXPECT_NEAR(squares / n, 1, 5 * std::sqrt(2 / n));
  EXPECT_NEAR(fourth / n, 3, 5 * std::sqrt(96 / n));
  EXPECT_NEAR(beyond_two / n, 0.0455, 5 * std::sqrt(0.0455 / n));
  EXPECT_NEAR(neighbours / n, 0, 5 / std::sqrt(n));
}

TEST(FillNormalTest, DependsOnTheSeedAloneNotOnLdOrType) {
  Matrix dense(5, 7, DType::kFp32);
  Matrix padded(5, 7, 16, DType::kFp32);
  Matrix rounded(5, 7, DType::kBf16);
  Matrix other(5, 7, DType::kFp32);
  FillNormal(dense, 3);
  FillNormal(padded, 3);
  FillNormal(rounded, 3);
  FillNormal(other, 4);
  int equal_to_other = 0;
  for (int64_t i = 0; i < 5; ++i) {
    for (int64_t j = 0; j < 7; ++j) {
      const double x = ElementAt(dense.view(), i, j);
      EXPECT_EQ(x, ElementAt(padded.view(), i, j));
      EXPECT_EQ(ToFloat(ToBf16(static_cast<float>(x))), ElementAt(rounded.view(), i, j));
      equal_to_other += x == ElementAt(other.view(), i, j);
    }
  }
  EXPECT_EQ(equal_to_other, 0);
}

TEST(FillNormalTest, GivesTheSameBitsOnEveryMachine) {
  Matrix matrix(1, 4, DType::kFp32);
  FillNormal(matrix, 1);
  uint32_t bits[4];
  std::memcpy(bits, matrix.data<float>(), sizeof(bits));
  EXPECT_EQ(bits[0], 0xbecc4341u);
  EXPECT_EQ(bits[1], 0xbda5e0e7u);
  EXPECT_EQ(bits[2], 0xbec52c7au);
  EXPECT_EQ(bits[3], 0x3fd193bdu);
}

TEST(FillNormalTest, GapsAreNan) {
  for (const DType dtype : {DType::kBf16, DType::kFp32}) {
    Matrix matrix(3, 2, 5, dtype);
    FillBytes(matrix, 0);
    FillNormal(matrix, 1);
    MatrixView wide = matrix.view();
    wide.cols = 5;
    for (int64_t i = 0; i < 2; ++i) {
      for (int64_t j = 0; j < 5; ++j) {
        EXPECT_EQ(std::isnan(ElementAt(wide, i, j)), j >= 2) << i << "," << j;
      }
    }
  }
}

}  // namespace
}  // namespace tcgemm
