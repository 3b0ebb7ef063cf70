#include "server/rpc/matmul_wire.h"

#include <google/protobuf/stubs/logging.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "tcgemm/v1/matmul.pb.h"
#include "tests/rpc/request_comparison.h"

namespace tcgemm {
namespace {

std::vector<ByteSpan> CutAtRandom(const std::string& bytes, std::mt19937& rng) {
  std::vector<ByteSpan> pieces;
  std::uniform_int_distribution<size_t> length(0, 40);
  for (size_t at = 0; at < bytes.size();) {
    const size_t size = std::min(length(rng), bytes.size() - at);
    pieces.push_back({reinterpret_cast<const uint8_t*>(bytes.data()) + at, size});
    at += size;
  }
  return pieces;
}

v1::Operand RandomOperand(std::mt19937& rng) {
  v1::Operand operand;
  operand.set_rows(static_cast<int64_t>(rng()) - 5);
  operand.set_cols(rng() % 3 == 0 ? -static_cast<int64_t>(rng()) : static_cast<int64_t>(rng() % 9));
  if (rng() % 2 == 0) operand.set_ld(static_cast<int64_t>(rng()) << (rng() % 32));
  operand.set_dtype(static_cast<v1::DType>(static_cast<int>(rng() % 7) - 1));
  operand.set_transposed(rng() % 2 == 0);
  switch (rng() % 4) {
    case 0:
      break;
    case 1:
      operand.set_handle("handle");
      break;
    case 2:
      if (rng() % 2 == 0) operand.mutable_region()->set_region("region");
      operand.mutable_region()->set_offset(static_cast<int64_t>(rng()) - 7);
      break;
    default:
      operand.set_inline_(std::string(rng() % 300, static_cast<char>(rng())));
  }
  return operand;
}

v1::MatmulRequest RandomRequest(std::mt19937& rng) {
  v1::MatmulRequest request;
  if (rng() % 8 != 0) *request.mutable_a() = RandomOperand(rng);
  if (rng() % 8 != 0) *request.mutable_b() = RandomOperand(rng);
  request.set_output_dtype(static_cast<v1::DType>(rng() % 5));
  if (rng() % 4 == 0) request.set_alpha(2.5f);
  if (rng() % 4 == 0) request.set_beta(0.0f);
  if (rng() % 4 == 0) *request.mutable_c() = RandomOperand(rng);
  if (rng() % 4 == 0) *request.mutable_bias() = RandomOperand(rng);
  if (rng() % 4 == 0) request.set_activation(static_cast<v1::Activation>(rng() % 5));
  if (rng() % 4 == 0) request.set_priority(static_cast<int32_t>(rng()));
  if (rng() % 4 == 0) request.set_reduction(static_cast<v1::Reduction>(rng() % 4));
  if (rng() % 4 == 0) request.mutable_output()->set_handle("out");
  if (rng() % 4 == 0) request.mutable_output()->mutable_region()->set_offset(9);
  if (rng() % 8 == 0) request.mutable_output()->mutable_region()->set_region("there");
  if (rng() % 4 == 0) {
    request.mutable_output()->set_ttl_seconds(static_cast<int64_t>(rng()) * 1000003);
  }
  return request;
}

TEST(ParseMatmulRequestTest, ReadsWhatProtobufWrites) {
  std::mt19937 rng(1);
  for (int round = 0; round < 2000; ++round) {
    const v1::MatmulRequest request = RandomRequest(rng);
    std::string message = request.SerializeAsString();
    v1::MatmulRequest merged = request;
    if (rng() % 3 == 0) {
      // A message and another behind it merge into one.
      const v1::MatmulRequest more = RandomRequest(rng);
      message += more.SerializeAsString();
      ASSERT_TRUE(merged.ParseFromString(message));
    }
    const auto pieces = CutAtRandom(message, rng);
    const auto fields = ParseMatmulRequest(pieces);
    ASSERT_TRUE(fields.ok()) << fields.status();
    EXPECT_EQ(RequestDifference(message, *fields, merged), "");
  }
}

TEST(ParseMatmulRequestTest, JudgesDamagedBytesAsProtobufDoes) {
  const google::protobuf::LogSilencer quiet;
  std::mt19937 rng(2);
  int accepted = 0;
  int refused = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string message = RandomRequest(rng).SerializeAsString();
    if (message.empty()) continue;
    if (rng() % 4 == 0) {
      message.resize(rng() % message.size());
    } else {
      message[rng() % std::min<size_t>(message.size(), 30)] = static_cast<char>(rng());
    }
    const auto pieces = CutAtRandom(message, rng);
    const auto fields = ParseMatmulRequest(pieces);
    v1::MatmulRequest theirs;
    if (!theirs.ParseFromString(message)) {
      refused += fields.ok() ? 0 : 1;  // we are more lenient where we do not look inside
      continue;
    }
    ASSERT_TRUE(fields.ok()) << fields.status() << " " << absl::BytesToHexString(message);
    EXPECT_EQ(RequestDifference(message, *fields, theirs), "");
    ++accepted;
  }
  EXPECT_GT(accepted, 1000);
  EXPECT_GT(refused, 1000);
}

TEST(ParseMatmulRequestTest, EveryTruncationIsRefusedOrAnEarlierField) {
  v1::MatmulRequest request;
  request.mutable_a()->set_rows(3);
  request.mutable_a()->set_inline_("abcdef");
  const std::string message = request.SerializeAsString();
  for (size_t length = 1; length < message.size(); ++length) {
    const std::string cut = message.substr(0, length);
    std::mt19937 rng(3);
    EXPECT_FALSE(ParseMatmulRequest(CutAtRandom(cut, rng)).ok()) << length;
  }
}

// Found by tests/fuzz: an operand is one level of protobuf's hundred.
TEST(ParseMatmulRequestTest, GroupsNestAsDeepAsProtobufAllows) {
  for (const int depth : {99, 100, 101}) {
    std::string groups;
    for (int i = 0; i < depth; ++i) groups += "\xfb\x07";  // field 127 starts
    for (int i = 0; i < depth; ++i) groups += "\xfc\x07";  // and ends
    v1::MatmulRequest request;
    for (const std::string& message :
         {groups, "\x0a" +
                      std::string{static_cast<char>(groups.size() % 128 + 128),
                                  static_cast<char>(groups.size() / 128)} +
                      groups}) {
      const ByteSpan whole{reinterpret_cast<const uint8_t*>(message.data()), message.size()};
      EXPECT_EQ(ParseMatmulRequest({&whole, 1}).ok(), request.ParseFromString(message)) << depth;
    }
  }
}

// ---- Copies ----

struct Shape {
  int64_t rows;
  int64_t cols;
  int64_t ld;  // 0: cols
};

// A request whose element (i, j) of A and B is a number that names it.
v1::Operand Numbered(const Shape& shape, uint16_t first) {
  const int64_t ld = shape.ld == 0 ? shape.cols : shape.ld;
  std::vector<uint16_t> elements((shape.rows - 1) * ld + shape.cols, 0x7fc0);
  for (int64_t i = 0; i < shape.rows; ++i) {
    for (int64_t j = 0; j < shape.cols; ++j) {
      elements[i * ld + j] = static_cast<uint16_t>(first + i * shape.cols + j);
    }
  }
  v1::Operand operand;
  operand.set_rows(shape.rows);
  operand.set_cols(shape.cols);
  operand.set_ld(shape.ld);
  operand.set_dtype(v1::BF16);
  operand.set_inline_(elements.data(), elements.size() * 2);
  return operand;
}

void ExpectNumbered(const MatrixView& view, uint16_t first) {
  const auto* elements = static_cast<const uint16_t*>(view.data);
  for (int64_t i = 0; i < view.rows; ++i) {
    for (int64_t j = 0; j < view.cols; ++j) {
      ASSERT_EQ(elements[i * view.ld + j], static_cast<uint16_t>(first + i * view.cols + j))
          << i << " " << j;
    }
  }
}

TEST(PlanCopiesTest, OperandsArriveForEveryPitchAndCut) {
  std::mt19937 rng(4);
  for (const int64_t pitch : {1, 8, 64}) {
    for (const int parts : {1, 2, 3, 7}) {
      for (const int64_t ld : {0, 5, 8, 9, 64}) {
        v1::MatmulRequest request;
        *request.mutable_a() = Numbered({6, 5, ld}, 1000);
        *request.mutable_b() = Numbered({5, 3, 0}, 2000);
        const std::string message = request.SerializeAsString();
        const auto pieces = CutAtRandom(message, rng);
        const auto layout = ValidateRequest(ParseMatmulRequest(pieces).value(), pitch, 1 << 20);
        ASSERT_TRUE(layout.ok()) << layout.status();
        std::vector<std::byte> lease(layout->lease_bytes + 256, std::byte{0xee});
        for (const OperandCopy& copy : PlanCopies(*layout, lease.data(), parts)) {
          RunCopy(pieces, copy);
        }
        const GemmProblem problem = layout->ProblemIn(lease.data());
        EXPECT_EQ(problem.a.ld % pitch, 0);
        ExpectNumbered(problem.a, 1000);
        ExpectNumbered(problem.b, 2000);
        const std::pair<size_t, size_t> untouched[] = {
            {layout->a_offset + layout->a.span_bytes(), layout->b_offset},
            {layout->b_offset + layout->b.span_bytes(), lease.size()}};
        for (const auto& [begin, end] : untouched) {
          for (size_t i = begin; i < end; ++i) {
            ASSERT_EQ(lease[i], std::byte{0xee}) << "a copy wrote beyond its operand";
          }
        }
      }
    }
  }
}

// C in fp32 and a column of bias in bf16, each with gaps in the message, and a row of bias.
TEST(PlanCopiesTest, CAndBiasArriveForEveryPitchAndCut) {
  std::mt19937 rng(5);
  for (const int64_t pitch : {1, 64}) {
    for (const int parts : {1, 3}) {
      for (const bool column : {false, true}) {
        v1::MatmulRequest request;
        *request.mutable_a() = Numbered({6, 5, 0}, 1000);
        *request.mutable_b() = Numbered({5, 4, 0}, 2000);
        // Two numbers are one fp32 here: 6x4 of them with a ld of 7.
        *request.mutable_c() = Numbered({6, 8, 14}, 3000);
        request.mutable_c()->set_cols(4);
        request.mutable_c()->set_ld(7);
        request.mutable_c()->set_dtype(v1::FP32);
        *request.mutable_bias() = column ? Numbered({6, 1, 3}, 4000) : Numbered({1, 4, 9}, 4000);
        request.set_beta(0.5f);
        const std::string message = request.SerializeAsString();
        const auto pieces = CutAtRandom(message, rng);
        const auto layout = ValidateRequest(ParseMatmulRequest(pieces).value(), pitch, 1 << 20);
        ASSERT_TRUE(layout.ok()) << layout.status();
        std::vector<std::byte> lease(layout->lease_bytes, std::byte{0xee});
        for (const OperandCopy& copy : PlanCopies(*layout, lease.data(), parts)) {
          RunCopy(pieces, copy);
        }
        const GemmProblem problem = layout->ProblemIn(lease.data());
        ASSERT_TRUE(ValidateProblem(problem).ok()) << ValidateProblem(problem);
        ExpectNumbered(problem.a, 1000);
        ExpectNumbered(problem.b, 2000);
        MatrixView c = problem.epilogue.c;
        EXPECT_EQ(c.dtype, DType::kFp32);
        EXPECT_EQ(c.ld % pitch, 0);
        c.cols *= 2;
        c.ld *= 2;
        ExpectNumbered(c, 3000);
        const MatrixView& bias = problem.epilogue.bias;
        EXPECT_EQ(bias.ld % (column ? 1 : pitch), 0);
        ExpectNumbered(bias, 4000);
        EXPECT_EQ(layout->operand_bytes(), layout->d_offset);
      }
    }
  }
}

TEST(PlanCopiesTest, ACThatNobodyReadsIsNotCopied) {
  v1::MatmulRequest request;
  *request.mutable_a() = Numbered({6, 5, 0}, 1000);
  *request.mutable_b() = Numbered({5, 4, 0}, 2000);
  *request.mutable_c() = Numbered({6, 4, 0}, 3000);
  const std::string message = request.SerializeAsString();
  const ByteSpan whole{reinterpret_cast<const uint8_t*>(message.data()), message.size()};
  const auto layout = ValidateRequest(ParseMatmulRequest({&whole, 1}).value(), 64, 1 << 20);
  ASSERT_TRUE(layout.ok()) << layout.status();
  EXPECT_EQ(PlanCopies(*layout, nullptr, 1).size(), 2u);
  EXPECT_TRUE(layout->ProblemIn(nullptr).epilogue.is_default());
}

TEST(EncodeResponseHeaderTest, WithDBehindItIsAResponse) {
  // 16: a length of 128 bytes is the first that needs two bytes.
  for (const int64_t n : {1, 15, 16, 100, 70000}) {
    RequestLayout layout;
    layout.d = {nullptr, 2, n, n, DType::kFp32, false};
    JobOutcome outcome;
    outcome.kernel = "a_kernel";
    outcome.tflops = 1.5;
    outcome.batched_with = 3;
    outcome.timings = {
        .queue = Nanos(3), .copy_in = Nanos(4), .kernel = Nanos(5), .copy_out = Nanos(7)};
    std::string bytes = EncodeResponseHeader(layout, outcome, Nanos(1), Nanos(2));
    const std::string d(layout.d.span_bytes(), 'd');
    v1::MatmulResponse response;
    ASSERT_TRUE(response.ParseFromString(bytes + d));
    EXPECT_EQ(response.rows(), 2);
    EXPECT_EQ(response.cols(), n);
    EXPECT_EQ(response.dtype(), v1::FP32);
    EXPECT_EQ(response.d(), d);
    EXPECT_EQ(response.kernel(), "a_kernel");
    EXPECT_EQ(response.tflops(), 1.5);
    EXPECT_EQ(response.batched_with(), 3);
    EXPECT_EQ(response.timings().receive_ns(), 1);
    EXPECT_EQ(response.timings().decode_ns(), 2);
    EXPECT_EQ(response.timings().queue_ns(), 3);
    EXPECT_EQ(response.timings().copy_in_ns(), 4);
    EXPECT_EQ(response.timings().kernel_ns(), 5);
    EXPECT_EQ(response.timings().copy_out_ns(), 7);
  }
}

}  // namespace
}  // namespace tcgemm
