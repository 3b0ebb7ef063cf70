#include "client/cli/any_size.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "matrix/reference.h"
#include "tests/client/naive_server.h"

namespace tcgemm::client {
namespace {

constexpr CallOptions kOptions{.timeout = std::chrono::seconds(60)};

// Views of matrices that are nowhere: sizes alone are looked at.
ProductViews Shape(int64_t m, int64_t n, int64_t k) {
  static uint16_t element;
  return {.a = {&element, m, k, k, DType::kBf16, false},
          .b = {&element, k, n, n, DType::kBf16, false},
          .output = DType::kFp32};
}

TEST(AnySizeTest, KnowsWhatOneMessageCannotHold) {
  EXPECT_FALSE(NeedsStream(Shape(1000, 1000, 1000), {}));
  EXPECT_TRUE(NeedsStream(Shape(1, 1, 600'000'000), {})) << "2.4 GB of operands";
  EXPECT_TRUE(NeedsStream(Shape(30'000, 30'000, 1), {})) << "3.6 GB of result";
  ServerInfo server;
  server.max_message_bytes = 4'000'000;
  server.max_request_memory_bytes = 100'000'000;
  EXPECT_TRUE(NeedsStream(Shape(1000, 1000, 1000), server));
  EXPECT_FALSE(NeedsStream(Shape(1000, 900, 900), server));
  EXPECT_FALSE(NeedsStream(Shape(4000, 6000, 10), server));
  EXPECT_TRUE(NeedsStream(Shape(5000, 6000, 10), server)) << "A + B + D";
}

// The server takes messages of 4 MiB at most, and says so.
TEST(AnySizeTest, StreamsWhatIsTooLargeAndWhatIsAskedFor) {
  NaiveServer server;
  const auto client = Client::Create({.server = server.address()}).value();
  Matrix d;
  const auto multiply = [&](int64_t m, int64_t k, bool stream) {
    Matrix a(m, k, DType::kBf16);
    Matrix b(k, 1, DType::kBf16);
    FillNormal(a, 1);
    FillNormal(b, 2);
    const auto made = MultiplyAnySize(*client, {.server = server.address()},
                                      {.a = a.view(), .b = b.view(), .output = DType::kFp32},
                                      stream, d, kOptions);
    EXPECT_TRUE(made.ok()) << made.status();
    const Reference reference = ComputeReference(a.view(), b.view()).value();
    EXPECT_TRUE(CompareWithReference(d.view(), reference)->ok);
    return made.ok() && made->streamed;
  };
  EXPECT_FALSE(multiply(3, 5, false));
  EXPECT_TRUE(multiply(3, 5, true));
  EXPECT_EQ(server.stream_calls(), 1);
  const int unary = server.matmul_calls();
  EXPECT_TRUE(multiply(3, 1'000'000, false)) << "6 MB: the server's word decides";
  EXPECT_EQ(server.matmul_calls(), unary);
}

TEST(AnySizeTest, OtherRefusalsAreNotStreamed) {
  NaiveServer server;
  const auto client = Client::Create({.server = server.address()}).value();
  server.FailNext(9, static_cast<int>(absl::StatusCode::kResourceExhausted), "");
  const Matrix one(1, 1, DType::kBf16);
  Matrix d;
  const auto made = MultiplyAnySize(*client, {.server = server.address()},
                                    {.a = one.view(), .b = one.view()}, false, d, kOptions);
  EXPECT_EQ(made.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(server.stream_calls(), 0);
}

}  // namespace
}  // namespace tcgemm::client
