// Matmul with an epilogue, through a real server over a device with memory of its own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/tile/activation.h"
#include "tests/rpc/matrix_client.h"

namespace tcgemm {
namespace {

using grpc::StatusCode;
using testing::HasSubstr;

v1::Operand Fp32(int64_t rows, int64_t cols, const std::vector<float>& values) {
  v1::Operand operand;
  operand.set_rows(rows);
  operand.set_cols(cols);
  operand.set_dtype(v1::FP32);
  operand.set_inline_(values.data(), values.size() * sizeof(float));
  return operand;
}

// D = 6 everywhere, in fp32, and then the epilogue.
v1::MatmulRequest Ones() {
  v1::MatmulRequest request = RpcFixture::Ones();
  request.set_output_dtype(v1::FP32);
  return request;
}

std::vector<float> Values(const v1::MatmulResponse& response) {
  std::vector<float> values(response.d().size() / sizeof(float));
  std::memcpy(values.data(), response.d().data(), response.d().size());
  return values;
}

struct Fixture : RpcFixture {
  std::vector<float> Multiply(const v1::MatmulRequest& request) {
    v1::MatmulResponse response;
    const grpc::Status status = Call(request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return Values(response);
  }
};

TEST(EpilogueMatmulTest, EveryStep) {
  Fixture fixture;
  v1::MatmulRequest request = Ones();
  request.set_alpha(2);
  EXPECT_EQ(fixture.Multiply(request), std::vector<float>(20, 12));
  std::vector<float> c(20);
  for (int i = 0; i < 20; ++i) c[i] = static_cast<float>(i);
  *request.mutable_c() = Fp32(4, 5, c);
  request.set_beta(-1);
  const auto expect = [&](auto value) {
    const std::vector<float> d = fixture.Multiply(request);
    ASSERT_EQ(d.size(), 20u);
    for (int i = 0; i < 20; ++i) EXPECT_EQ(d[i], value(i)) << i;
  };
  expect([](int i) { return 12.0f - i; });
  *request.mutable_bias() = Fp32(1, 5, {0, 100, 200, 300, 400});
  expect([](int i) { return 12.0f - i + 100 * (i % 5); });
  *request.mutable_bias() = Fp32(4, 1, {0, 100, 200, 300});
  expect([](int i) { return 12.0f - i + 100 * (i / 5); });
  request.clear_bias();
  request.set_activation(v1::RELU);
  expect([](int i) { return i < 12 ? 12.0f - i : 0.0f; });
  request.set_activation(v1::GELU);
  expect([](int i) { return Gelu(12.0f - i); });
  request.set_activation(v1::SILU);
  expect([](int i) { return Silu(12.0f - i); });
}

TEST(EpilogueMatmulTest, BlasZeros) {
  Fixture fixture;
  const float nan = std::nanf("");
  v1::MatmulRequest request = Ones();
  *request.mutable_c() = Fp32(4, 5, std::vector<float>(20, nan));
  EXPECT_EQ(fixture.Multiply(request), std::vector<float>(20, 6)) << "beta is 0: C is not read";
  *request.mutable_c() = Fp32(4, 5, std::vector<float>(20, 7));
  request.set_beta(1);
  request.set_alpha(0);
  request.mutable_a()->mutable_inline_()->replace(0, 2, "\xc0\x7f");  // a NaN
  EXPECT_EQ(fixture.Multiply(request), std::vector<float>(20, 7)) << "alpha is 0";
}

TEST(EpilogueMatmulTest, ResidentCAndBias) {
  Fixture fixture;
  ASSERT_TRUE(
      Upload(fixture, {UploadHeader("row", 1, 5), UploadRange(0, OnesData(1, 5))}).status.ok());
  ASSERT_TRUE(
      Upload(fixture, {UploadHeader("column", 4, 1), UploadRange(0, OnesData(4, 1))}).status.ok());
  v1::MatmulRequest first = Ones();
  first.mutable_output()->set_handle("sum");
  ASSERT_TRUE(fixture.Call(first).ok());
  // A product in fp32 stays as a C: sums over requests.
  v1::MatmulRequest request = Ones();
  request.mutable_c()->set_handle("sum");
  request.set_beta(1);
  EXPECT_EQ(fixture.Multiply(request), std::vector<float>(20, 12));
  for (const char* const bias : {"row", "column"}) {
    request.mutable_bias()->set_handle(bias);
    EXPECT_EQ(fixture.Multiply(request), std::vector<float>(20, 13)) << bias;
  }
  const auto code_of = [&fixture](const v1::MatmulRequest& wrong, const char* words) {
    const grpc::Status status = fixture.Call(wrong);
    EXPECT_THAT(status.error_message(), HasSubstr(words));
    return status.error_code();
  };
  v1::MatmulRequest wrong = request;
  wrong.mutable_c()->set_handle("nobody");
  EXPECT_EQ(code_of(wrong, "c.handle: no matrix 'nobody'"), StatusCode::NOT_FOUND);
  wrong = request;
  wrong.mutable_bias()->set_rows(7);
  EXPECT_EQ(code_of(wrong, "bias.rows is 7"), StatusCode::INVALID_ARGUMENT);
  wrong = request;
  wrong.mutable_c()->set_handle("row");
  EXPECT_EQ(code_of(wrong, "c is 1x5, D is 4x5"), StatusCode::INVALID_ARGUMENT);
}

TEST(EpilogueMatmulTest, AKeptResultHasItToo) {
  Fixture fixture;
  v1::MatmulRequest request = RpcFixture::Ones();
  request.set_output_dtype(v1::BF16);
  request.set_alpha(0.5f);
  request.mutable_output()->set_handle("half");
  ASSERT_TRUE(fixture.Call(request).ok());
  EXPECT_EQ(Download(fixture, "half").data.substr(0, 2), std::string("\x40\x40", 2)) << "3";
}

TEST(EpilogueMatmulTest, SaysWhatIsWrong) {
  Fixture fixture;
  v1::MatmulRequest request = Ones();
  request.set_beta(1);
  const grpc::Status status = fixture.Call(request);
  EXPECT_EQ(status.error_code(), StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(status.error_message(), "beta is 1, but c is missing: set c, 4x5");
}

}  // namespace
}  // namespace tcgemm
