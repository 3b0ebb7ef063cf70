// The client over real gRPC, against a server in this process.
#include "client/client.h"

#include <gtest/gtest.h>

#include "absl/status/status.h"
#include "matrix/reference.h"
#include "tests/client/naive_server.h"

namespace tcgemm::client {
namespace {

constexpr CallOptions kOptions{.timeout = std::chrono::seconds(20)};

class ClientTest : public testing::Test {
 protected:
  ClientTest() : client_(Client::Create({.server = server_.address()}).value()) {}

  absl::StatusOr<MatmulInfo> Multiply(Matrix& d, const CallOptions& options = kOptions) {
    const Matrix one(1, 1, DType::kBf16);
    return client_->Matmul(one.view(), one.view(), DType::kFp32, d, options);
  }

  NaiveServer server_;
  std::unique_ptr<Client> client_;
};

// Small and large, dense, with gaps, gathered.
TEST_F(ClientTest, ProductsAreRight) {
  Matrix d;
  for (const int64_t k : {3, 999}) {
    for (const int64_t gap : {0, 1, 2000}) {
      Matrix a(k, 37, 37 + gap, DType::kBf16);
      Matrix b(k, 41, 41 + gap, DType::kBf16);
      FillNormal(a, 1);
      FillNormal(b, 2);
      const Reference reference = ComputeReference(a.transposed_view(), b.view()).value();
      for (const DType output : {DType::kBf16, DType::kFp32}) {
        const auto info = client_->Matmul(a.transposed_view(), b.view(), output, d, kOptions);
        ASSERT_TRUE(info.ok()) << info.status();
        const Comparison comparison = CompareWithReference(d.view(), reference).value();
        EXPECT_TRUE(comparison.ok) << comparison.ToString();
        EXPECT_EQ(info->kernel, "naive");
        EXPECT_EQ(info->attempts, 1);
        EXPECT_GT(info->round_trip, Nanos(0));
        EXPECT_EQ(info->kernel_time, Nanos(5));
      }
    }
  }
}

TEST_F(ClientTest, ReusesTheMemoryOfD) {
  Matrix d(64, 64, DType::kFp32);
  const char* const memory = d.data<char>();
  ASSERT_TRUE(Multiply(d).ok());
  EXPECT_EQ(d.data<char>(), memory);
}

TEST_F(ClientTest, ATimeoutIsRequired) {
  Matrix d;
  EXPECT_TRUE(absl::IsInvalidArgument(Multiply(d, {}).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(client_->GetServerInfo({}).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(client_->CheckHealth("", {}).status()));
  EXPECT_EQ(server_.matmul_calls(), 0);
}

TEST_F(ClientTest, RetriesUnavailable) {
  server_.FailNext(2, /*UNAVAILABLE*/ 14, "");
  Matrix d;
  const auto info = Multiply(d);
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_EQ(info->attempts, 3);
}

TEST_F(ClientTest, RetriesAFullServerOnlyWithAPushback) {
  Matrix d;
  server_.FailNext(1, /*RESOURCE_EXHAUSTED*/ 8, "20");
  const auto info = Multiply(d);
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_EQ(info->attempts, 2);
  EXPECT_LT(info->round_trip, Nanos(std::chrono::seconds(10)));
  server_.FailNext(1, 8, "");
  EXPECT_TRUE(absl::IsResourceExhausted(Multiply(d).status()));
  server_.FailNext(1, 8, "-1");
  EXPECT_TRUE(absl::IsResourceExhausted(Multiply(d).status()));
  server_.FailNext(1, 8, "soon");
  EXPECT_TRUE(absl::IsResourceExhausted(Multiply(d).status()));
  EXPECT_EQ(server_.matmul_calls(), 5);
}

TEST_F(ClientTest, DoesNotRetryWhenTold) {
  server_.FailNext(1, 14, "");
  Matrix d;
  const absl::Status status = Multiply(d, {.timeout = kOptions.timeout, .retry = false}).status();
  EXPECT_TRUE(absl::IsUnavailable(status));
  EXPECT_EQ(status.message(), "told to fail");
  EXPECT_EQ(server_.matmul_calls(), 1);
}

TEST_F(ClientTest, ServerInfo) {
  const absl::StatusOr<ServerInfo> info = client_->GetServerInfo(kOptions);
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_EQ(info->device, "naive");
  EXPECT_EQ(info->version, "1.2.3");
  EXPECT_EQ(info->max_message_bytes, 4 << 20);
  EXPECT_EQ(info->kernels, (std::vector<std::string>{"k1", "k2"}));
}

TEST_F(ClientTest, HealthByGrpcsOwnService) {
  EXPECT_EQ(client_->CheckHealth("", kOptions).value(), Health::kServing);
  EXPECT_EQ(client_->CheckHealth("nobody.Knows", kOptions).value(), Health::kUnknown);
}

TEST_F(ClientTest, ARefusedSizeIsTheServersStatus) {
  Matrix big(2048, 1025, DType::kBf16);  // gRPC's servers take 4 MiB unless told otherwise
  FillBytes(big, 0);
  Matrix d;
  const auto info = client_->Matmul(big.view(), big.transposed_view(), DType::kBf16, d, kOptions);
  EXPECT_TRUE(absl::IsResourceExhausted(info.status())) << info.status();
}

TEST(UnreachableTest, FailsWithoutWaitingForTheDeadline) {
  // Port 1 on loopback: nothing listens there.
  const auto client = Client::Create({.server = "127.0.0.1:1"}).value();
  const TimePoint start = Clock::Real()->Now();
  const absl::Status status = client->GetServerInfo({.timeout = std::chrono::seconds(60)}).status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_LT(Clock::Real()->Now() - start, std::chrono::seconds(20));
}

TEST(CreateTest, RefusesAnAddressThatDoesNotParse) {
  EXPECT_TRUE(absl::IsInvalidArgument(Client::Create({.server = "nonsense"}).status()));
}

}  // namespace
}  // namespace tcgemm::client
