#include "server/rpc/epilogue_fields.h"

#include <gmock/gmock.h>
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
using testing::HasSubstr;

constexpr StatusCode kInvalid = StatusCode::kInvalidArgument;
constexpr StatusCode kUnbuilt = StatusCode::kUnimplemented;

OperandFields Inline(int64_t rows, int64_t cols, v1::DType dtype = v1::BF16) {
  OperandFields operand;
  operand.present = true;
  operand.rows = rows;
  operand.cols = cols;
  operand.dtype = dtype;
  operand.source = OperandFields::Source::kInline;
  operand.inline_bytes = static_cast<size_t>(rows * cols) * (dtype == v1::FP32 ? 4 : 2);
  operand.inline_position = 77;
  return operand;
}

// A is 4x6, B is 6x5, so that D is 4x5.
RequestFields Good() {
  RequestFields fields;
  fields.a = Inline(4, 6);
  fields.b = Inline(6, 5);
  return fields;
}

RequestFields Full() {
  RequestFields fields = Good();
  fields.c = Inline(4, 5, v1::FP32);
  fields.bias = Inline(1, 5);
  fields.epilogue = {.alpha = 2.0f, .beta = 0.5f, .activation = v1::SILU};
  return fields;
}

absl::StatusOr<RequestLayout> Validate(const RequestFields& fields, int64_t pitch = 1) {
  return ValidateRequest(fields, pitch, 1 << 20);
}

TEST(EpilogueFieldsTest, WithoutAnyThereIsNone) {
  const auto layout = Validate(Good());
  ASSERT_TRUE(layout.ok()) << layout.status();
  EXPECT_TRUE(layout->epilogue.steps.is_default());
  EXPECT_FALSE(layout->epilogue.c_in_lease());
  EXPECT_FALSE(layout->epilogue.bias_in_lease());
}

TEST(EpilogueFieldsTest, EveryFieldArrives) {
  for (const int64_t pitch : {1, 64}) {
    const auto layout = Validate(Full(), pitch);
    ASSERT_TRUE(layout.ok()) << layout.status();
    const Epilogue& steps = layout->epilogue.steps;
    EXPECT_EQ(steps.alpha, 2.0f);
    EXPECT_EQ(steps.beta, 0.5f);
    EXPECT_EQ(steps.activation, Activation::kSilu);
    EXPECT_EQ(steps.c.dtype, DType::kFp32);
    EXPECT_EQ(steps.c.ld, pitch == 1 ? 5 : 64);
    EXPECT_EQ(steps.bias.rows, 1);
    EXPECT_EQ(steps.bias.ld, pitch == 1 ? 5 : 64);
    EXPECT_EQ(layout->epilogue.c_source_ld, 5);
    EXPECT_EQ(layout->epilogue.c_position, 77u);
    EXPECT_EQ(layout->epilogue.bias_position, 77u);
    // A, B, C, bias and D, one after the other.
    const size_t offsets[] = {layout->a_offset,          layout->b_offset,
                              layout->epilogue.c_offset, layout->epilogue.bias_offset,
                              layout->d_offset,          layout->lease_bytes};
    for (size_t i = 1; i < std::size(offsets); ++i) {
      EXPECT_GT(offsets[i], offsets[i - 1]);
      EXPECT_EQ(offsets[i] % 256, 0u);
    }
    EXPECT_GE(layout->d_offset - layout->epilogue.c_offset,
              steps.c.span_bytes() + steps.bias.span_bytes());
  }
}

TEST(EpilogueFieldsTest, EachTypeAndAxis) {
  for (const v1::DType dtype : {v1::BF16, v1::FP32}) {
    RequestFields fields = Full();
    fields.c = Inline(4, 5, dtype);
    for (const OperandFields& bias : {Inline(1, 5, dtype), Inline(4, 1, dtype)}) {
      fields.bias = bias;
      const auto layout = Validate(fields, 64);
      ASSERT_TRUE(layout.ok()) << layout.status();
      // A column is dense in the lease: the pitch is for rows.
      EXPECT_EQ(layout->epilogue.steps.bias.ld, bias.cols == 1 ? 1 : 64);
    }
  }
}

TEST(EpilogueFieldsTest, WithBetaZeroCTakesNoMemory) {
  RequestFields fields = Full();
  const size_t with_c = Validate(fields)->lease_bytes;
  fields.epilogue.beta.reset();
  EXPECT_EQ(Validate(fields)->lease_bytes, with_c - 256);
  EXPECT_FALSE(Validate(fields)->epilogue.c_in_lease());
  fields.c.rows = 3;
  fields.c.inline_bytes = 60;
  EXPECT_EQ(Validate(fields).status().code(), kInvalid) << "but it must fit";
}

TEST(EpilogueFieldsTest, ResidentOnesTakeNoMemory) {
  const char memory[256] = {};
  RequestFields fields = Full();
  const auto reside = [&memory](OperandFields& operand, DType dtype) {
    operand.source = OperandFields::Source::kHandle;
    operand.resident = {memory, operand.rows, operand.cols, 64, dtype, false};
  };
  reside(fields.c, DType::kFp32);
  reside(fields.bias, DType::kBf16);
  const auto layout = Validate(fields, 64);
  ASSERT_TRUE(layout.ok()) << layout.status();
  EXPECT_EQ(layout->lease_bytes, ValidateRequest(Good(), 64, 1 << 20)->lease_bytes);
  std::byte lease[1];
  EXPECT_EQ(layout->ProblemIn(lease).epilogue.c.data, memory);
  EXPECT_EQ(layout->ProblemIn(lease).epilogue.bias.ld, 64);
}

TEST(EpilogueFieldsTest, TheMemoryOfAllCounts) {
  const size_t needed = Validate(Full())->lease_bytes;
  EXPECT_TRUE(ValidateRequest(Full(), 1, needed).ok());
  const absl::Status refused = ValidateRequest(Full(), 1, needed - 1).status();
  EXPECT_EQ(refused.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("A, B, C, bias and D of 4x5"));
}

struct BadCase {
  const char* name;
  std::function<void(RequestFields&)> change;
  StatusCode code;
  std::string words;
};

class BadEpilogueTest : public ::testing::TestWithParam<BadCase> {};

TEST_P(BadEpilogueTest, IsRefusedInWords) {
  RequestFields fields = Full();
  GetParam().change(fields);
  const absl::Status status = Validate(fields).status();
  EXPECT_EQ(status.code(), GetParam().code) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(GetParam().words));
}

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

INSTANTIATE_TEST_SUITE_P(
    Fields, BadEpilogueTest,
    ::testing::Values(
        BadCase{"AlphaNan", [](auto& f) { f.epilogue.alpha = kNan; }, kInvalid,
                "alpha is nan; it must be finite"},
        BadCase{"AlphaInf", [](auto& f) { f.epilogue.alpha = -kInf; }, kInvalid, "alpha is -inf"},
        BadCase{"BetaNan", [](auto& f) { f.epilogue.beta = kNan; }, kInvalid, "beta is nan"},
        BadCase{"BetaWithoutC", [](auto& f) { f.c = {}; }, kInvalid,
                "beta is 0.5, but c is missing: set c, 4x5"},
        BadCase{"CShape", [](auto& f) { f.c = Inline(5, 4, v1::FP32); }, kInvalid,
                "c is 5x4, D is 4x5; they must be equal"},
        BadCase{"CTransposed", [](auto& f) { f.c.transposed = true; }, kInvalid,
                "c.transposed is true, must be false"},
        BadCase{"CBytes", [](auto& f) { f.c.inline_bytes = 40; }, kInvalid,
                "c.inline has 40 bytes, expected 80 for 4x5 fp32 with ld 5"},
        BadCase{"CBytesBeyondInt64",
                [](auto& f) {
                  f.c.rows = f.c.cols = 2147483647;
                  f.c.ld = 0;
                },
                kInvalid, "expected 18446744056529682436 for 2147483647x2147483647 fp32"},
        BadCase{"CBytesOfFp32",
                [](auto& f) {
                  f.c = Inline(4, 5);
                  f.c.inline_bytes = 80;
                },
                kInvalid, "that looks like fp32"},
        BadCase{"CTypeInt8", [](auto& f) { f.c.dtype = v1::INT8; }, kUnbuilt,
                "c.dtype INT8 (use BF16 or FP32)"},
        BadCase{"CTypeUnspecified", [](auto& f) { f.c.dtype = 0; }, kInvalid,
                "c.dtype is 0, must be a declared type: BF16 (1) or FP32 (2)"},
        BadCase{"CWithoutSource", [](auto& f) { f.c.source = OperandFields::Source::kNone; },
                kInvalid,
                "c has no source: set c.inline to its elements or c.handle to a resident matrix"},
        BadCase{"CRegion", [](auto& f) { f.c.source = OperandFields::Source::kRegion; }, kUnbuilt,
                "c.region is declared, not built yet"},
        BadCase{"CZeroRows", [](auto& f) { f.c.rows = 0; }, kInvalid, "c.rows is 0"},
        BadCase{"BiasShape", [](auto& f) { f.bias = Inline(1, 4); }, kInvalid,
                "bias is 1x4, D is 4x5; bias must be a row, 1x5, or a column, 4x1"},
        BadCase{"BiasMatrix", [](auto& f) { f.bias = Inline(4, 5); }, kInvalid, "bias is 4x5"},
        BadCase{"BiasTransposed", [](auto& f) { f.bias.transposed = true; }, kInvalid,
                "bias.transposed is true"},
        BadCase{"BiasLd", [](auto& f) { f.bias.ld = 4; }, kInvalid, "bias.ld is 4"},
        BadCase{"BiasRegion", [](auto& f) { f.bias.source = OperandFields::Source::kRegion; },
                kUnbuilt, "bias.region"},
        BadCase{"ActivationUndeclared", [](auto& f) { f.epilogue.activation = 44; }, kInvalid,
                "activation is 44, which is not declared"},
        BadCase{"ActivationNegative", [](auto& f) { f.epilogue.activation = -1; }, kInvalid,
                "activation is -1"}),
    [](const auto& info) { return std::string(info.param.name); });

// The numbers travel: ours are the proto's.
TEST(EpilogueFieldsTest, ActivationsAreTheProtos) {
  EXPECT_EQ(static_cast<int>(Activation::kNone), v1::ACTIVATION_UNSPECIFIED);
  EXPECT_EQ(static_cast<int>(Activation::kRelu), v1::RELU);
  EXPECT_EQ(static_cast<int>(Activation::kGelu), v1::GELU);
  EXPECT_EQ(static_cast<int>(Activation::kSilu), v1::SILU);
  EXPECT_EQ(v1::Activation_MAX, v1::SILU);
}

}  // namespace
}  // namespace tcgemm
