#include "kernels/gemm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

namespace tcgemm {
namespace {

using testing::HasSubstr;

constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();

class ValidateProblemTest : public testing::Test {
 protected:
  ValidateProblemTest() {
    problem_.a = {memory_, 2, 3, 3, DType::kBf16, false};
    problem_.b = {memory_, 3, 4, 4, DType::kBf16, false};
    problem_.d = {memory_, 2, 4, 4, DType::kFp32, false};
  }
  void ExpectRefused(const char* reason) {
    const absl::Status status = ValidateProblem(problem_);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(reason));
  }

  char memory_[64] = {};
  GemmProblem problem_;
};

TEST_F(ValidateProblemTest, AcceptsAllLayoutsAndOutputs) {
  EXPECT_TRUE(ValidateProblem(problem_).ok());
  problem_.a = {memory_, 3, 2, 2, DType::kBf16, true};
  problem_.b = {memory_, 4, 3, 9, DType::kBf16, true};
  problem_.d.dtype = DType::kBf16;
  EXPECT_TRUE(ValidateProblem(problem_).ok()) << ValidateProblem(problem_);
  EXPECT_EQ(LayoutName(problem_), "TT");
}

TEST_F(ValidateProblemTest, AcceptsEmptyOnesWithoutData) {
  problem_.a = {nullptr, 2, 0, 1, DType::kBf16, false};
  problem_.b = {nullptr, 0, 4, 4, DType::kBf16, false};
  EXPECT_TRUE(ValidateProblem(problem_).ok()) << ValidateProblem(problem_);
}

TEST_F(ValidateProblemTest, RefusesEachKindOfNonsense) {
  const GemmProblem good = problem_;
  problem_.b.rows = 2;
  ExpectRefused("op(a) has 3 columns but op(b) has 2 rows");
  problem_ = good;
  problem_.d.rows = 3;
  ExpectRefused("d is 3x4; it must be 2x4");
  problem_ = good;
  problem_.d.transposed = true;
  ExpectRefused("d.transposed");
  problem_ = good;
  problem_.d.dtype = DType::kInt32;
  ExpectRefused("d.dtype is int32");
  problem_ = good;
  problem_.a.dtype = DType::kFp32;
  ExpectRefused("a.dtype is fp32");
  problem_ = good;
  problem_.b.dtype = DType::kInt8;
  ExpectRefused("b.dtype is int8");
  problem_ = good;
  problem_.a.rows = -1;
  ExpectRefused("a is -1x3");
  problem_ = good;
  problem_.b.cols = std::numeric_limits<int64_t>::min();
  ExpectRefused("b is 3x-9223372036854775808");
  problem_ = good;
  problem_.d.ld = 3;
  ExpectRefused("d.ld is 3; it must be at least 4");
  problem_ = good;
  problem_.b.data = nullptr;
  ExpectRefused("b.data is null");
}

TEST_F(ValidateProblemTest, LooksAtTheEpilogueToo) {
  problem_.epilogue = {.alpha = 2,
                       .beta = 1,
                       .c = {memory_, 2, 4, 4, DType::kBf16, false},
                       .bias = {memory_, 2, 1, 3, DType::kFp32, false},
                       .activation = Activation::kGelu};
  EXPECT_TRUE(ValidateProblem(problem_).ok()) << ValidateProblem(problem_);
  const GemmProblem good = problem_;
  problem_.epilogue.c.rows = 3;
  ExpectRefused("c is 3x4, D is 2x4");
  problem_ = good;
  problem_.epilogue.c.ld = 3;
  ExpectRefused("c.ld is 3; it must be at least 4");
  problem_ = good;
  problem_.epilogue.c.data = nullptr;
  ExpectRefused("c.data is null");
  problem_ = good;
  problem_.epilogue.bias.cols = 4;
  ExpectRefused("bias is 2x4, D is 2x4");
  problem_ = good;
  problem_.epilogue.bias.data = nullptr;
  ExpectRefused("bias.data is null; it must point to 16 bytes");
}

TEST_F(ValidateProblemTest, AlphaZeroSumsNothing) {
  EXPECT_EQ(problem_.summed_k(), 3);
  problem_.epilogue.alpha = 0;
  EXPECT_EQ(problem_.summed_k(), 0);
  EXPECT_EQ(problem_.shape().k, 3);
}

TEST_F(ValidateProblemTest, RefusesLdZeroEvenWhenEmpty) {
  problem_.a = {nullptr, 2, 0, 0, DType::kBf16, false};
  ExpectRefused("a.ld is 0; it must be at least 1");
}

TEST_F(ValidateProblemTest, SurvivesHugeDimensions) {
  problem_.a = {memory_, kHuge, 3, 3, DType::kBf16, false};
  ExpectRefused("a of 9223372036854775807 rows with ld 3 spans more");
  problem_.a = {memory_, 2, 3, kHuge, DType::kBf16, false};
  ExpectRefused("a of 2 rows with ld 9223372036854775807 spans more");
  problem_.a = {memory_, 1, kHuge, kHuge, DType::kBf16, false};
  ExpectRefused("a of 1 rows");
  // The last span that fits: 2^62 − 1 elements of two bytes.
  problem_.a = {memory_, 1, kHuge / 2, kHuge / 2, DType::kBf16, false};
  ExpectRefused("op(a) has 4611686018427387903 columns but op(b) has 3 rows");
  problem_.a = {memory_, 1, kHuge / 2 + 1, kHuge / 2 + 1, DType::kBf16, false};
  ExpectRefused("spans more");
}

TEST_F(ValidateProblemTest, EmptyButHugeIsFine) {
  problem_.a = {nullptr, kHuge, 0, kHuge, DType::kBf16, false};
  problem_.b = {nullptr, 0, 0, 1, DType::kBf16, false};
  problem_.d = {nullptr, kHuge, 0, 1, DType::kBf16, false};
  EXPECT_TRUE(ValidateProblem(problem_).ok()) << ValidateProblem(problem_);
}

TEST(GemmShapeTest, FlopsAndNames) {
  EXPECT_EQ((GemmShape{.m = 64, .n = 128, .k = 256}.ToString()), "64x128x256");
  EXPECT_EQ((GemmShape{.m = 2, .n = 3, .k = 5}.flops()), 60);
  EXPECT_GT((GemmShape{.m = kHuge, .n = kHuge, .k = kHuge}.flops()), 1e57);
}

}  // namespace
}  // namespace tcgemm
