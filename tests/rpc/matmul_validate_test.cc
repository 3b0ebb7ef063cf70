#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "server/rpc/matmul_wire.h"
#include "tcgemm/v1/matmul.pb.h"

namespace tcgemm {
namespace {

using absl::StatusCode;

OperandFields Inline(int64_t rows, int64_t cols, size_t bytes) {
  OperandFields operand;
  operand.present = true;
  operand.rows = rows;
  operand.cols = cols;
  operand.dtype = v1::BF16;
  operand.source = OperandFields::Source::kInline;
  operand.inline_bytes = bytes;
  return operand;
}

// A is 4x6, B is 6x5.
RequestFields Good() {
  RequestFields fields;
  fields.a = Inline(4, 6, 48);
  fields.b = Inline(6, 5, 60);
  return fields;
}

absl::StatusOr<RequestLayout> Validate(const RequestFields& fields, size_t limit = 1 << 20) {
  return ValidateRequest(fields, /*pitch_alignment=*/1, limit);
}

struct BadCase {
  std::string name;
  std::function<void(RequestFields&)> change;
  StatusCode code;
  std::vector<std::string> words;
};

class BadRequestTest : public ::testing::TestWithParam<BadCase> {};

TEST_P(BadRequestTest, IsRefusedInWords) {
  RequestFields fields = Good();
  GetParam().change(fields);
  const auto layout = Validate(fields);
  ASSERT_EQ(layout.status().code(), GetParam().code) << layout.status();
  for (const std::string& word : GetParam().words) {
    EXPECT_NE(layout.status().message().find(word), std::string::npos)
        << word << " in: " << layout.status().message();
  }
}

constexpr int64_t kMin64 = std::numeric_limits<int64_t>::min();
constexpr int64_t kMax64 = std::numeric_limits<int64_t>::max();
constexpr int64_t kMax32 = std::numeric_limits<int32_t>::max();
constexpr StatusCode kInvalid = StatusCode::kInvalidArgument;
constexpr StatusCode kUnbuilt = StatusCode::kUnimplemented;

INSTANTIATE_TEST_SUITE_P(
    Shapes, BadRequestTest,
    ::testing::Values(
        BadCase{
            "InnerDimensions", [](auto& f) { f.b = Inline(5, 6, 60); }, kInvalid, {"4x6", "5x6"}},
        BadCase{"InnerDimensionsTransposed",
                [](auto& f) { f.b.transposed = true; },
                kInvalid,
                {"stored 6x5, transposed"}},
        BadCase{"ZeroRows", [](auto& f) { f.a.rows = 0; }, kInvalid, {"a.rows is 0"}},
        BadCase{"NegativeCols", [](auto& f) { f.b.cols = -3; }, kInvalid, {"b.cols is -3"}},
        BadCase{"LeastRows", [](auto& f) { f.a.rows = kMin64; }, kInvalid, {"a.rows"}},
        BadCase{"MostRows", [](auto& f) { f.a.rows = kMax64; }, kInvalid, {"a.rows"}},
        BadCase{"Beyond32Bits", [](auto& f) { f.a.cols = kMax32 + 1; }, kInvalid, {"2147483648"}},
        BadCase{"ProductBeyond64Bits",
                [](auto& f) { f.a.rows = f.a.cols = f.b.rows = kMax32; },
                kInvalid,
                {"a.inline"}},
        BadCase{"LdBelowCols", [](auto& f) { f.a.ld = 5; }, kInvalid, {"a.ld is 5", "cols = 6"}},
        BadCase{"LdNegative", [](auto& f) { f.a.ld = -1; }, kInvalid, {"a.ld is -1"}},
        BadCase{"LdHuge", [](auto& f) { f.a.ld = kMax64; }, kInvalid, {"a.ld"}},
        BadCase{"OneByteShort",
                [](auto& f) { f.a.inline_bytes = 47; },
                kInvalid,
                {"a.inline has 47 bytes, expected 48"}},
        BadCase{"Fp32Bytes", [](auto& f) { f.a.inline_bytes = 96; }, kInvalid, {"fp32"}},
        BadCase{"Fp64Bytes", [](auto& f) { f.b.inline_bytes = 240; }, kInvalid, {"fp64"}},
        BadCase{"NoOperand", [](auto& f) { f.b.present = false; }, kInvalid, {"b is missing"}},
        BadCase{"NoSource",
                [](auto& f) { f.a.source = OperandFields::Source::kNone; },
                kInvalid,
                {"a has no source"}}),
    [](const auto& info) { return info.param.name; });

INSTANTIATE_TEST_SUITE_P(
    Values, BadRequestTest,
    ::testing::Values(
        BadCase{"OutputUndeclared",
                [](auto& f) { f.output_dtype = 17; },
                kInvalid,
                {"output_dtype is 17"}},
        BadCase{"OutputNegative", [](auto& f) { f.output_dtype = -1; }, kInvalid, {"-1"}},
        BadCase{"OutputInt32", [](auto& f) { f.output_dtype = v1::INT32; }, kUnbuilt, {"INT32"}},
        BadCase{"TypeUnspecified", [](auto& f) { f.a.dtype = 0; }, kInvalid, {"a.dtype is 0"}},
        BadCase{"TypeUndeclared", [](auto& f) { f.b.dtype = 99; }, kInvalid, {"b.dtype is 99"}},
        BadCase{"TypeFp32", [](auto& f) { f.b.dtype = v1::FP32; }, kUnbuilt, {"b.dtype FP32"}},
        BadCase{"RegionNotLookedUp",
                [](auto& f) { f.b.source = OperandFields::Source::kRegion; },
                kUnbuilt,
                {"b.region"}},
        BadCase{"OutputWithoutTarget",
                [](auto& f) { f.output.present = true; },
                kInvalid,
                {"output has no target"}},
        BadCase{"OutputRegionNotLookedUp",
                [](auto& f) {
                  f.output = {true, OutputFields::Target::kRegion, "", {}};
                },
                kUnbuilt,
                {"output.region"}},
        BadCase{"Verify", [](auto& f) { f.verify = v1::VERIFY_FREIVALDS; }, kUnbuilt, {"verify"}},
        BadCase{"Reduction", [](auto& f) { f.reduction = 3; }, kInvalid, {"reduction is 3"}},
        BadCase{"Priority", [](auto& f) { f.priority = 3; }, kUnbuilt, {"priority"}},
        BadCase{"PriorityRange", [](auto& f) { f.priority = 10; }, kInvalid, {"priority is 10"}}),
    [](const auto& info) { return info.param.name; });

TEST(ValidateRequestTest, DefaultsAreWhatIsBuilt) {
  RequestFields fields = Good();
  fields.epilogue.alpha = 1.0f;
  fields.epilogue.beta = 0.0f;
  fields.verify = v1::VERIFY_NONE;
  fields.reduction = v1::SAME_BITS;
  const auto layout = Validate(fields);
  ASSERT_TRUE(layout.ok()) << layout.status();
  EXPECT_EQ(layout->d.dtype, DType::kBf16);
  EXPECT_EQ(layout->d.rows, 4);
  EXPECT_EQ(layout->d.cols, 5);
  EXPECT_EQ(layout->d.ld, 5);
  fields.output_dtype = v1::FP32;
  EXPECT_EQ(Validate(fields)->d.dtype, DType::kFp32);
  EXPECT_FALSE(Validate(fields)->fastest);
  fields.reduction = v1::FASTEST;
  EXPECT_TRUE(Validate(fields)->fastest);
}

TEST(ValidateRequestTest, TransposedOperandsSwapTheirDimensions) {
  RequestFields fields;
  fields.a = Inline(6, 4, 48);
  fields.a.transposed = true;
  fields.b = Inline(5, 6, 60);
  fields.b.transposed = true;
  const auto layout = Validate(fields);
  ASSERT_TRUE(layout.ok()) << layout.status();
  EXPECT_EQ(layout->d.rows, 4);
  EXPECT_EQ(layout->d.cols, 5);
}

TEST(ValidateRequestTest, TheLastRowMayBePaddedOrNot) {
  RequestFields fields = Good();
  fields.a.ld = 8;
  for (const size_t bytes : {60, 64}) {
    fields.a.inline_bytes = bytes;
    EXPECT_TRUE(Validate(fields).ok());
  }
  fields.a.inline_bytes = 62;
  EXPECT_EQ(Validate(fields).status().code(), kInvalid);
}

TEST(ValidateRequestTest, LaysMatricesOutOneAfterTheOther) {
  for (const int64_t pitch : {1, 64}) {
    const auto layout = ValidateRequest(Good(), pitch, 1 << 20);
    ASSERT_TRUE(layout.ok());
    EXPECT_EQ(layout->a_offset, 0u);
    EXPECT_EQ(layout->b_offset % 256, 0u);
    EXPECT_EQ(layout->d_offset % 256, 0u);
    EXPECT_GE(layout->b_offset, static_cast<size_t>(4 * layout->a.ld * 2));
    EXPECT_GE(layout->d_offset - layout->b_offset, static_cast<size_t>(6 * layout->b.ld * 2));
    EXPECT_GE(layout->lease_bytes - layout->d_offset, 40u);
    EXPECT_EQ(layout->a.ld, pitch == 1 ? 6 : 64);
  }
}

TEST(ValidateRequestTest, ExactlyTheMemoryThereIsIsEnough) {
  const size_t needed = Validate(Good())->lease_bytes;
  EXPECT_TRUE(Validate(Good(), needed).ok());
  const auto refused = Validate(Good(), needed - 1);
  EXPECT_EQ(refused.status().code(), StatusCode::kResourceExhausted);
  EXPECT_NE(refused.status().message().find("--pinned-bytes"), std::string::npos);
}

TEST(ValidateRequestTest, AResultBeyond64BitsIsRefused) {
  // K = 1: few bytes in, 2^62 · 4 out.
  RequestFields fields;
  fields.a = Inline(kMax32, 1, static_cast<size_t>(kMax32) * 2);
  fields.b = Inline(1, kMax32, static_cast<size_t>(kMax32) * 2);
  fields.output_dtype = v1::FP32;
  EXPECT_EQ(Validate(fields, std::numeric_limits<size_t>::max()).status().code(),
            StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace tcgemm
