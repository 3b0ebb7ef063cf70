#include "matrix/freivalds.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>

#include "matrix/matrix.h"
#include "matrix/reference.h"
#include "tests/matrix/accumulators.h"

namespace tcgemm {
namespace {

constexpr int64_t kM = 24, kN = 40, kK = 200;

struct Operands {
  explicit Operands(bool transpose_a = false, bool transpose_b = false, int64_t gap = 0)
      : a(transpose_a ? kK : kM, transpose_a ? kM : kK, (transpose_a ? kM : kK) + gap,
          DType::kBf16),
        b(transpose_b ? kN : kK, transpose_b ? kK : kN, (transpose_b ? kK : kN) + gap,
          DType::kBf16) {
    FillNormal(a, 21);
    FillNormal(b, 22);
    a_view = transpose_a ? a.transposed_view() : a.view();
    b_view = transpose_b ? b.transposed_view() : b.view();
  }
  Matrix a, b;
  MatrixView a_view, b_view;
};

FreivaldsResult Check(const Operands& operands, const Matrix& d, FreivaldsOptions options = {}) {
  const absl::StatusOr<FreivaldsResult> result =
      CheckFreivalds(operands.a_view, operands.b_view, d.view(), options);
  EXPECT_TRUE(result.ok()) << result.status();
  return result.value_or(FreivaldsResult{});
}

TEST(FreivaldsTest, AcceptsRightProductsOfEveryLayoutAndOutput) {
  for (const bool ta : {false, true}) {
    for (const bool tb : {false, true}) {
      const Operands operands(ta, tb, 5);
      for (const DType output : {DType::kBf16, DType::kFp32}) {
        const Matrix d = Multiply(operands.a_view, operands.b_view, output, HopperDot);
        const FreivaldsResult result = Check(operands, d);
        EXPECT_TRUE(result.ok) << result.max_error_ratio;
        EXPECT_GT(result.max_error_ratio, 0);
        EXPECT_EQ(result.skipped_rows, 0);
      }
    }
  }
}

TEST(FreivaldsTest, AcceptsEveryAccumulatorWithEverySeed) {
  const Operands operands;
  for (const auto& accumulators : {AscendingAccumulators(), ReorderedAccumulators()}) {
    for (const Accumulator& accumulator : accumulators) {
      const Matrix d = Multiply(operands.a_view, operands.b_view, DType::kFp32, accumulator.dot);
      for (uint64_t seed = 0; seed < 50; ++seed) {
        EXPECT_TRUE(Check(operands, d, {.rounds = 8, .seed = seed}).ok) << accumulator.name;
      }
    }
  }
}

TEST(FreivaldsTest, AcceptsOneSignedDataAndAResultReadTransposed) {
  Operands operands;
  for (int64_t i = 0; i < kM * kK; ++i) operands.a.data<Bf16>()[i].bits &= 0x7fff;
  for (int64_t i = 0; i < kN * kK; ++i) operands.b.data<Bf16>()[i].bits &= 0x7fff;
  const Matrix d = Multiply(operands.a_view, operands.b_view, DType::kFp32, HopperDot);
  EXPECT_TRUE(Check(operands, d).ok);
  // (A·B)ᵀ = Bᵀ·Aᵀ.
  EXPECT_TRUE(CheckFreivalds(operands.b.transposed_view(), operands.a.transposed_view(),
                             d.transposed_view(), {})
                  ->ok);
}

TEST(FreivaldsTest, AcceptsTheSmallest) {
  Matrix one(1, 1, DType::kBf16), d(1, 1, DType::kFp32);
  FillNormal(one, 1);
  SetElement(d, 0, 0, ElementAt(one.view(), 0, 0) * ElementAt(one.view(), 0, 0));
  EXPECT_TRUE(CheckFreivalds(one.view(), one.view(), d.view(), {})->ok);
  SetElement(d, 0, 0, ElementAt(d.view(), 0, 0) * 1.001 + 0.001);
  EXPECT_FALSE(CheckFreivalds(one.view(), one.view(), d.view(), {})->ok);
  const Matrix a(2, 0, DType::kBf16), b(0, 1, DType::kBf16);
  Matrix zeros(2, 1, DType::kBf16);
  FillBytes(zeros, 0);
  EXPECT_TRUE(CheckFreivalds(a.view(), b.view(), zeros.view(), {})->ok);
}

TEST(FreivaldsTest, RejectsOneChangedElement) {
  const Operands operands;
  for (const DType output : {DType::kBf16, DType::kFp32}) {
    Matrix d = Multiply(operands.a_view, operands.b_view, output, HopperDot);
    // fp32: a hundredth of a typical element. bf16: what rounding of the whole row may hide.
    SetElement(d, 17, 5, ElementAt(d.view(), 17, 5) + (output == DType::kFp32 ? 0.1 : 4));
    const FreivaldsResult result = Check(operands, d);
    EXPECT_FALSE(result.ok);
    EXPECT_EQ(result.worst_row, 17);
  }
}

TEST(FreivaldsTest, RejectsALostStep) {
  const Operands operands;
  Matrix a(kM, kK, DType::kBf16);
  FillNormal(a, 21);
  for (int64_t i = 0; i < kM; ++i) {
    for (int64_t k = 96; k < 112; ++k) SetElement(a, i, k, 0);
  }
  for (const DType output : {DType::kBf16, DType::kFp32}) {
    const Matrix d = Multiply(a.view(), operands.b_view, output, HopperDot);
    EXPECT_FALSE(Check(operands, d).ok);
  }
}

TEST(FreivaldsTest, RejectsALostStepOfALargeProduct) {
  // 4096 columns and k: the bound of the sum of all errors would accept this one.
  Matrix a(16, 4096, DType::kBf16), b(4096, 1024, DType::kBf16), d(16, 1024, DType::kFp32);
  FillNormal(a, 1);
  FillNormal(b, 2);
  const Reference whole = *ComputeReference(a.view(), b.view());
  MatrixView lost_a = a.view();
  lost_a.cols = 16;
  MatrixView lost_b = b.view();
  lost_b.rows = 16;
  const Reference lost = *ComputeReference(lost_a, lost_b);
  for (int64_t i = 0; i < 16; ++i) {
    for (int64_t j = 0; j < 1024; ++j) SetElement(d, i, j, whole.at(i, j).exact);
  }
  EXPECT_TRUE(CheckFreivalds(a.view(), b.view(), d.view(), {})->ok);
  for (int64_t i = 0; i < 16; ++i) {
    for (int64_t j = 0; j < 1024; ++j) {
      SetElement(d, i, j, whole.at(i, j).exact - lost.at(i, j).exact);
    }
  }
  EXPECT_FALSE(CheckFreivalds(a.view(), b.view(), d.view(), {})->ok);
}

TEST(FreivaldsTest, SkipsAndCountsRowsThatAreNotFinite) {
  Operands operands;
  SetElement(operands.a, 3, 7, std::numeric_limits<double>::quiet_NaN());
  Matrix d = Multiply(operands.a_view, operands.b_view, DType::kFp32, HopperDot);
  SetElement(d, 3, 0, 1e30);  // in a skipped row: unseen
  SetElement(d, 9, 1, -std::numeric_limits<double>::infinity());
  FreivaldsResult result = Check(operands, d);
  EXPECT_TRUE(result.ok);
  EXPECT_EQ(result.skipped_rows, 2);
  SetElement(d, 10, 1, 1e30);  // its neighbours are still looked at
  result = Check(operands, d);
  EXPECT_FALSE(result.ok);
  EXPECT_EQ(result.worst_row, 10);
  SetElement(operands.b, 0, 0, std::numeric_limits<double>::infinity());
  EXPECT_EQ(Check(operands, d).skipped_rows, kM);
}

TEST(FreivaldsTest, TheSeedDecides) {
  const Operands operands;
  const Matrix d = Multiply(operands.a_view, operands.b_view, DType::kFp32, HopperDot);
  const double first = Check(operands, d, {.rounds = 1, .seed = 1}).max_error_ratio;
  EXPECT_EQ(Check(operands, d, {.rounds = 1, .seed = 1}).max_error_ratio, first);
  EXPECT_NE(Check(operands, d, {.rounds = 1, .seed = 2}).max_error_ratio, first);
  EXPECT_GE(Check(operands, d, {.rounds = 9, .seed = 1}).max_error_ratio, first);
}

TEST(FreivaldsTest, RefusesBadArguments) {
  const Operands operands;
  const Matrix d(kM, kN, DType::kFp32), narrow(kM, kN - 1, DType::kFp32);
  const Matrix bytes(kM, kN, DType::kInt32);
  const auto code = [&](const MatrixView& a, const Matrix& result, int rounds) {
    return CheckFreivalds(a, operands.b_view, result.view(), {.rounds = rounds}).status().code();
  };
  EXPECT_EQ(code(operands.a_view, narrow, 4), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(operands.a_view, bytes, 4), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(operands.a.transposed_view(), d, 4), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(operands.a_view, d, 0), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(operands.a_view, d, 65), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace tcgemm
