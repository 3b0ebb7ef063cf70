#include "matrix/epilogue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "matrix/activation.h"
#include "matrix/matrix.h"

namespace tcgemm {
namespace {

using testing::HasSubstr;

constexpr EpilogueShape kShape = {.m = 3, .n = 5};

void ExpectRefused(const Epilogue& epilogue, const char* what) {
  const absl::Status status = ValidateEpilogue(epilogue, kShape);
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status << " instead of " << what;
  EXPECT_THAT(std::string(status.message()), HasSubstr(what));
}

MatrixView Shaped(int64_t rows, int64_t cols, DType dtype = DType::kBf16) {
  return {nullptr, rows, cols, cols, dtype, false};
}

TEST(EpilogueTest, TheDefaultIsNothing) {
  Epilogue epilogue;
  EXPECT_TRUE(epilogue.is_default());
  EXPECT_TRUE(ValidateEpilogue(epilogue, kShape).ok());
  epilogue.c = Shaped(7, 7, DType::kInt8);  // beta is 0: nobody looks
  EXPECT_TRUE(epilogue.is_default());
  EXPECT_TRUE(ValidateEpilogue(epilogue, kShape).ok());
  EXPECT_FALSE(Epilogue{.alpha = 2}.is_default());
  EXPECT_FALSE(Epilogue{.beta = 1}.is_default());
  EXPECT_FALSE(Epilogue{.bias = Shaped(1, 5)}.is_default());
  EXPECT_FALSE(Epilogue{.activation = Activation::kRelu}.is_default());
}

TEST(EpilogueTest, AcceptsRowsColumnsAndBothTypes) {
  for (const DType dtype : {DType::kBf16, DType::kFp32}) {
    const Epilogue row = {.beta = 1, .c = Shaped(3, 5, dtype), .bias = Shaped(1, 5, dtype)};
    EXPECT_TRUE(ValidateEpilogue(row, kShape).ok()) << ValidateEpilogue(row, kShape);
    EXPECT_FALSE(BiasIsColumn(row.bias, kShape));
    const Epilogue column = {.bias = Shaped(3, 1, dtype)};
    EXPECT_TRUE(ValidateEpilogue(column, kShape).ok());
    EXPECT_TRUE(BiasIsColumn(column.bias, kShape));
  }
  // A single row or column: whichever it is, its elements are the same.
  EXPECT_FALSE(BiasIsColumn(Shaped(1, 5), {.m = 1, .n = 5}));
  EXPECT_TRUE(BiasIsColumn(Shaped(1, 1), {.m = 1, .n = 5}));
  EXPECT_FALSE(BiasIsColumn(Shaped(1, 1), {.m = 5, .n = 1}));
}

TEST(EpilogueTest, RefusesEachKindOfNonsense) {
  ExpectRefused({.alpha = std::numeric_limits<float>::infinity()}, "alpha is inf");
  ExpectRefused({.alpha = std::numeric_limits<float>::quiet_NaN()}, "alpha is nan");
  ExpectRefused({.beta = -std::numeric_limits<float>::infinity()}, "beta is -inf");
  ExpectRefused({.beta = 0.5f}, "c is 0x0, D is 3x5; they must be equal, as beta is 0.5");
  ExpectRefused({.beta = 1, .c = Shaped(5, 3)}, "c is 5x3, D is 3x5");
  ExpectRefused({.beta = 1, .c = Shaped(3, 5, DType::kInt8)}, "c.dtype is int8");
  Epilogue transposed = {.beta = 1, .c = Shaped(3, 5)};
  transposed.c.transposed = true;
  ExpectRefused(transposed, "c.transposed is true");
  ExpectRefused({.bias = Shaped(1, 3)},
                "bias is 1x3, D is 3x5; bias must be a row, 1x5, or a column, 3x1");
  ExpectRefused({.bias = Shaped(1, 5, DType::kInt32)}, "bias.dtype is int32");
  ExpectRefused({.activation = static_cast<Activation>(4)}, "activation is 4");
}

TEST(EpilogueTest, RowsHaveTheirPartOfCAndOfAColumn) {
  Matrix c(3, 5, 8, DType::kFp32);
  Matrix column(3, 1, 4, DType::kBf16);
  Matrix row(1, 5, DType::kBf16);
  Epilogue epilogue = {.beta = 1, .c = c.view(), .bias = column.view()};
  const Epilogue part = EpilogueOfRows(epilogue, kShape, 2, 1);
  EXPECT_EQ(part.c.data, c.data<float>() + 16);
  EXPECT_EQ(part.c.rows, 1);
  EXPECT_EQ(part.bias.data, column.data<uint16_t>() + 8);
  EXPECT_EQ(part.bias.rows, 1);
  epilogue.bias = row.view();
  EXPECT_EQ(EpilogueOfRows(epilogue, kShape, 2, 1).bias.data, row.data<char>());
  EXPECT_EQ(EpilogueOfRows(epilogue, kShape, 0, 2).bias.cols, 5);
}

TEST(ActivationNameTest, Names) {
  EXPECT_STREQ(ActivationName(Activation::kNone), "none");
  EXPECT_STREQ(ActivationName(Activation::kRelu), "relu");
  EXPECT_STREQ(ActivationName(Activation::kGelu), "gelu");
  EXPECT_STREQ(ActivationName(Activation::kSilu), "silu");
}

}  // namespace
}  // namespace tcgemm
