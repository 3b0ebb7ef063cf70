// Products over several connections, against a server in this process that breaks calls where it is
// told.
#include "client/lane_product.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "tests/client/matrix_server.h"

namespace tcgemm::client {
namespace {

using grpc::StatusCode;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr CallOptions kOptions{.timeout = std::chrono::seconds(20)};
constexpr size_t kMiB = size_t{1} << 20;

class LaneProductTest : public testing::TestWithParam<int> {
 protected:
  // A is 3 MiB and D 2 MiB with little work in between; B is small.
  LaneProductTest() : a_(700, 2250, DType::kBf16), b_(2, 2250, DType::kBf16) {
    FillNormal(a_, 1);
    FillNormal(b_, 2);
    client_ = Client::Create({.server = server_.address(), .lanes = GetParam()}).value();
    EXPECT_TRUE(
        Single()->Matmul(a_.view(), b_.transposed_view(), DType::kFp32, expected_, kOptions).ok());
  }
  std::unique_ptr<Client> Single() { return Client::Create({.server = server_.address()}).value(); }
  absl::StatusOr<MatmulInfo> Multiply(const CallOptions& options = kOptions) {
    return client_->Matmul(a_.view(), b_.transposed_view(), DType::kFp32, d_, options);
  }
  void ExpectRight() {
    ASSERT_EQ(d_.bytes(), expected_.bytes());
    EXPECT_EQ(std::memcmp(d_.data<char>(), expected_.data<char>(), d_.bytes()), 0);
    EXPECT_THAT(server_.handles(), IsEmpty()) << "temporary matrices stayed";
  }

  MatrixServer server_;
  Matrix a_;
  Matrix b_;
  Matrix d_;
  Matrix expected_;
  std::unique_ptr<Client> client_;
};

INSTANTIATE_TEST_SUITE_P(Lanes, LaneProductTest, testing::Values(2, 3, 8));

TEST_P(LaneProductTest, TheBitsAreThoseOfOneConnection) {
  const auto info = Multiply();
  ASSERT_TRUE(info.ok()) << info.status();
  ExpectRight();
  EXPECT_EQ(info->lanes, GetParam());
  EXPECT_EQ(info->attempts, 1);
  EXPECT_EQ(info->kernel, "matrix server");
  EXPECT_EQ(info->fallback, "");
  EXPECT_GT(info->round_trip, Nanos(0));
  // Of A, B and D, should this process be killed: a minute more than it may take.
  EXPECT_THAT(server_.times_to_live(), ElementsAre(80, 80, 80));
  EXPECT_EQ(server_.received_bytes(), DenseBytes(a_.view()) + DenseBytes(b_.view()));
}

TEST_P(LaneProductTest, EveryShapeGoes) {
  for (const int64_t m : {1, 3, 1500}) {
    for (const int64_t k : {1, 700}) {
      for (const bool transposed : {false, true}) {
        Matrix a(transposed ? k : m, transposed ? m : k, (transposed ? m : k) + 3, DType::kBf16);
        Matrix b(k, 2, DType::kBf16);
        FillNormal(a, 1);
        FillNormal(b, 2);
        const MatrixView view = transposed ? a.transposed_view() : a.view();
        for (const DType output : {DType::kBf16, DType::kFp32}) {
          Matrix expected;
          ASSERT_TRUE(Single()->Matmul(view, b.view(), output, expected, kOptions).ok());
          const auto info = client_->Matmul(view, b.view(), output, d_, kOptions);
          ASSERT_TRUE(info.ok()) << info.status();
          ASSERT_EQ(d_.bytes(), expected.bytes());
          EXPECT_EQ(std::memcmp(d_.data<char>(), expected.data<char>(), d_.bytes()), 0);
        }
      }
    }
  }
  EXPECT_THAT(server_.handles(), IsEmpty());
}

TEST_P(LaneProductTest, ABrokenLaneIsMadeGood) {
  server_.Fail({.method = MatrixMethod::kUpload, .skip = 2, .bytes = kMiB});
  server_.Fail({.method = MatrixMethod::kDownload, .bytes = 1000});
  const auto info = Multiply();
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_GE(info->attempts, 2);
  ExpectRight();
  EXPECT_LE(server_.received_bytes(), DenseBytes(a_.view()) + DenseBytes(b_.view()) + 2 * kMiB);
}

// Wherever the answer of one call is lost, or a call does not begin.
TEST_P(LaneProductTest, AnySingleFailureIsMadeGood) {
  for (const MatrixMethod method : {MatrixMethod::kUpload, MatrixMethod::kMatmul,
                                    MatrixMethod::kDownload, MatrixMethod::kDelete}) {
    for (int skip = 0; skip < 3; ++skip) {
      for (const bool after : {false, true}) {
        server_.Fail({.method = method, .skip = skip, .after = after});
        const auto info = Multiply();
        ASSERT_TRUE(info.ok()) << info.status();
        ASSERT_EQ(std::memcmp(d_.data<char>(), expected_.data<char>(), d_.bytes()), 0);
        // A deletion is tried once: the time to live is for what it missed.
        for (const std::string& handle : server_.handles()) {
          EXPECT_EQ(method, MatrixMethod::kDelete) << handle;
          server_.Remove(handle);
        }
      }
    }
  }
}

TEST_P(LaneProductTest, AnOperandThatLeftIsSentAgain) {
  server_.Fail({.method = MatrixMethod::kMatmul, .code = StatusCode::NOT_FOUND});
  ASSERT_TRUE(Multiply().ok());
  ExpectRight();
  server_.Fail({.method = MatrixMethod::kDownload, .code = StatusCode::NOT_FOUND});
  ASSERT_TRUE(Multiply().ok());
  ExpectRight();
}

TEST_P(LaneProductTest, AFailureEndsAllLanesAndLeavesNothing) {
  server_.Fail({.method = MatrixMethod::kUpload,
                .skip = 2,
                .count = 99,
                .code = StatusCode::INTERNAL,
                .bytes = 1});
  const absl::Status status = Multiply().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("told to fail"));
  EXPECT_THAT(server_.handles(), IsEmpty());
}

TEST_P(LaneProductTest, ATimeoutEndsItAndLeavesNothing) {
  server_.Fail({.method = MatrixMethod::kMatmul, .count = 9999});
  const TimePoint start = Clock::Real()->Now();
  const absl::Status status = Multiply({.timeout = std::chrono::milliseconds(300)}).status();
  EXPECT_TRUE(absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status)) << status;
  EXPECT_LT(Clock::Real()->Now() - start, std::chrono::seconds(10));
  EXPECT_THAT(server_.handles(), IsEmpty());
}

TEST_P(LaneProductTest, WithoutATimeoutNothingIsSent) {
  const int before = server_.peers();
  EXPECT_TRUE(absl::IsInvalidArgument(Multiply({}).status()));
  EXPECT_EQ(server_.peers(), before);
}

TEST_P(LaneProductTest, WhatCannotBeMultipliedIsSaidAtOnce) {
  EXPECT_TRUE(absl::IsInvalidArgument(
      client_->Matmul(a_.view(), b_.view(), DType::kFp32, d_, kOptions).status()));
  EXPECT_EQ(server_.calls(MatrixMethod::kUpload), 0);
}

}  // namespace
}  // namespace tcgemm::client
