// Streams over real gRPC, against a server in this process that may answer wrongly.
#include "client/stream_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <string>
#include <vector>

#include "client/streaming_client.h"
#include "matrix/reference.h"
#include "tests/client/naive_server.h"

namespace tcgemm::client {
namespace {

using testing::HasSubstr;

constexpr CallOptions kOptions{.timeout = std::chrono::seconds(20)};

struct Operands {
  explicit Operands(int64_t m = 9, int64_t n = 7, int64_t k = 33, int64_t gap = 0)
      : a(m, k, k + gap, DType::kBf16), b(k, n, n + gap, DType::kBf16) {
    FillNormal(a, 1);
    FillNormal(b, 2);
  }
  StreamedProduct product(DType output = DType::kFp32) const {
    return {.a = StreamView(a.view()), .b = StreamView(b.view()), .output = output};
  }
  void Check(const Matrix& d) const {
    const Reference reference = ComputeReference(a.view(), b.view()).value();
    const Comparison comparison = CompareWithReference(d.view(), reference).value();
    EXPECT_TRUE(comparison.ok) << comparison.ToString();
  }
  Matrix a;
  Matrix b;
};

class StreamClientTest : public testing::Test {
 protected:
  StreamClientTest() : client_(StreamClient::Create({.server = server_.address()}).value()) {}

  NaiveServer server_;
  std::unique_ptr<StreamClient> client_;
};

TEST_F(StreamClientTest, ProductsAreRightWhateverThePanelsAndGaps) {
  for (const int64_t gap : {0, 5}) {
    const Operands operands(9, 7, 33, gap);
    for (const DType output : {DType::kBf16, DType::kFp32}) {
      for (const size_t panel : {1, 3, 66, 67, 100000}) {
        StreamedProduct product = operands.product(output);
        product.panel_bytes = panel;
        Matrix d;
        const int before = server_.stream_panels();
        const auto made = client_->Multiply(product, StreamInto(&d, output), kOptions);
        ASSERT_TRUE(made.ok()) << made.status();
        operands.Check(d);
        EXPECT_EQ(made->info.kernel, "naive");
        EXPECT_EQ(made->info.kernel_time, Nanos(5));
        EXPECT_EQ(made->info.attempts, 1);
        EXPECT_GT(made->info.round_trip, Nanos(0));
        EXPECT_EQ(made->rows, 9);
        EXPECT_EQ(made->cols, 7);
        const size_t sent = (594 + panel - 1) / panel + (462 + panel - 1) / panel;
        EXPECT_EQ(server_.stream_panels() - before, static_cast<int>(sent));
      }
    }
  }
}

TEST_F(StreamClientTest, BytesAreAskedForInOrderAndOnce) {
  const Operands operands;
  StreamedProduct product = operands.product();
  product.panel_bytes = 50;
  std::atomic<size_t> next{0};
  product.a.read = [&, view = StreamView(operands.a.view())](size_t offset, absl::Span<char> to) {
    EXPECT_EQ(offset, next);
    next += to.size();
    return view.read(offset, to);
  };
  size_t written = 0;
  Matrix d(9, 7, DType::kFp32);
  const StreamedResult result = {.open =
                                     [&](int64_t rows, int64_t cols) {
                                       EXPECT_EQ(rows * cols, 63);
                                       EXPECT_EQ(written, 0u);
                                       return absl::OkStatus();
                                     },
                                 .write =
                                     [&](size_t offset, absl::string_view bytes) {
                                       EXPECT_EQ(offset, written);
                                       std::memcpy(d.data<char>() + offset, bytes.data(),
                                                   bytes.size());
                                       written += bytes.size();
                                       return absl::OkStatus();
                                     }};
  ASSERT_TRUE(client_->Multiply(product, result, kOptions).ok());
  EXPECT_EQ(next, operands.a.bytes());
  EXPECT_EQ(written, d.bytes());
  operands.Check(d);
}

TEST_F(StreamClientTest, ErrorsOfTheCallersOwnFunctionsEndTheCall) {
  const Operands operands;
  Matrix d;
  StreamedProduct product = operands.product();
  product.panel_bytes = 100;
  product.a.read = [](size_t offset, absl::Span<char>) {
    return offset < 300 ? absl::OkStatus() : absl::NotFoundError("the disk is gone");
  };
  const absl::Status read =
      client_->Multiply(product, StreamInto(&d, DType::kFp32), kOptions).status();
  EXPECT_EQ(read, absl::NotFoundError("the disk is gone"));
  const StreamedResult full = {
      .open = [](int64_t, int64_t) { return absl::OkStatus(); },
      .write = [](size_t, absl::string_view) { return absl::OutOfRangeError("the disk is full"); }};
  EXPECT_EQ(client_->Multiply(operands.product(), full, kOptions).status(),
            absl::OutOfRangeError("the disk is full"));
  const StreamedResult closed = {.open = [](int64_t, int64_t) { return absl::AbortedError("no"); },
                                 .write = full.write};
  EXPECT_EQ(client_->Multiply(operands.product(), closed, kOptions).status(),
            absl::AbortedError("no"));
}

TEST_F(StreamClientTest, AnAnswerThatIsNotTheProductIsDataLoss) {
  const Operands operands;
  Matrix d;
  for (const StreamFault fault :
       {StreamFault::kNoHeader, StreamFault::kWrongShape, StreamFault::kGap, StreamFault::kWrongCrc,
        StreamFault::kTooMuch, StreamFault::kTooLittle, StreamFault::kNoLastHeader,
        StreamFault::kAfterTheLast}) {
    server_.SpoilStreams(fault);
    // Without a header nothing is sent, and the server waits: a deadline ends that.
    const CallOptions options{.timeout = fault == StreamFault::kNoHeader
                                             ? Nanos(std::chrono::milliseconds(300))
                                             : kOptions.timeout};
    const auto made = client_->Multiply(operands.product(), StreamInto(&d, DType::kFp32), options);
    EXPECT_EQ(made.status().code(), fault == StreamFault::kNoHeader
                                        ? absl::StatusCode::kDeadlineExceeded
                                        : absl::StatusCode::kDataLoss)
        << static_cast<int>(fault) << ": " << made.status();
  }
  server_.SpoilStreams(StreamFault::kNone);
  EXPECT_TRUE(client_->Multiply(operands.product(), StreamInto(&d, DType::kFp32), kOptions).ok());
}

TEST_F(StreamClientTest, RefusalsAreTriedAgainAndNothingAfterThem) {
  const Operands operands;
  Matrix d;
  const auto multiply = [&](const CallOptions& options) {
    return client_->Multiply(operands.product(), StreamInto(&d, DType::kFp32), options);
  };
  server_.FailNext(2, static_cast<int>(absl::StatusCode::kResourceExhausted), "1");
  const auto made = multiply(kOptions);
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ(made->info.attempts, 3);
  operands.Check(d);
  server_.FailNext(1, static_cast<int>(absl::StatusCode::kResourceExhausted), "1");
  EXPECT_EQ(multiply({.timeout = kOptions.timeout, .retry = false}).status().code(),
            absl::StatusCode::kResourceExhausted);
  server_.FailNext(1, static_cast<int>(absl::StatusCode::kResourceExhausted), "");
  EXPECT_EQ(multiply(kOptions).status().code(), absl::StatusCode::kResourceExhausted)
      << "without a pushback it cannot help";
  server_.FailNext(0, 0, "");
  server_.SpoilStreams(StreamFault::kFailsMidway);
  const int before = server_.stream_calls();
  EXPECT_EQ(multiply(kOptions).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(server_.stream_calls(), before + 1) << "operands went out: not tried again";
}

TEST_F(StreamClientTest, WhatCannotBeSentIsRefusedHere) {
  const Operands operands;
  Matrix d;
  const auto refused = [&](auto change, const std::string& words) {
    StreamedProduct product = operands.product();
    change(product);
    const absl::Status status =
        client_->Multiply(product, StreamInto(&d, DType::kFp32), kOptions).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr(words));
  };
  refused([](auto& p) { p.a.rows = 0; }, "A is 0x33");
  refused([](auto& p) { p.b.read = nullptr; }, "B has neither");
  refused([](auto& p) { p.output = DType::kInt8; }, "output");
  refused([&](auto& p) { p.epilogue.c = Factor{.view = operands.a.view()}; }, "C has no handle");
  refused([](auto& p) { p.epilogue.bias = Factor{}; }, "the bias has no handle");
  refused([](auto& p) { p.panel_bytes = 0; }, "panel_bytes");
  refused([](auto& p) { p.panel_bytes = (4 << 20) + 1; }, "panel_bytes");
  EXPECT_EQ(client_->Multiply(operands.product(), StreamInto(&d, DType::kFp32), {}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(server_.stream_calls(), 0);
}

TEST_F(StreamClientTest, AnUnreachableServerIsSaidSoon) {
  const auto client = StreamClient::Create({.server = "127.0.0.1:1"}).value();
  Matrix d;
  const Operands operands;
  EXPECT_EQ(client
                ->Multiply(operands.product(), StreamInto(&d, DType::kFp32),
                           {.timeout = std::chrono::seconds(1)})
                .status()
                .code(),
            absl::StatusCode::kUnavailable);
  EXPECT_FALSE(StreamClient::Create({.server = ""}).ok());
}

TEST_F(StreamClientTest, AStreamingClientIsAClient) {
  const auto client = CreateStreamingClient({.server = server_.address()}).value();
  const Operands operands(5, 6, 7, 3);
  Matrix d;
  const auto info = client->Matmul(operands.a.view(), operands.b.view(), DType::kFp32, d, kOptions);
  ASSERT_TRUE(info.ok()) << info.status();
  operands.Check(d);
  EXPECT_EQ(server_.matmul_calls(), 0);
  EXPECT_EQ(server_.stream_calls(), 1);
  EXPECT_EQ(client->GetServerInfo(kOptions)->device, "naive");
  EXPECT_EQ(client->CheckHealth("", kOptions).value(), Health::kServing);
}

}  // namespace
}  // namespace tcgemm::client
