// When a product goes over several connections by itself, and when over one after all.
#include "client/laned_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "client/channel.h"
#include "tests/client/matrix_server.h"

namespace tcgemm::client {
namespace {

using grpc::StatusCode;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr CallOptions kOptions{.timeout = std::chrono::seconds(20)};

// Three lanes for what has more than 1000 bytes.
int Policy(int asked, size_t bytes) { return asked != 0 ? asked : bytes > 1000 ? 3 : 1; }

class LanedClientTest : public testing::Test {
 protected:
  explicit LanedClientTest(const MatrixServer::Options& options = {})
      : server_(options), a_(40, 30, DType::kBf16), b_(30, 20, DType::kBf16) {
    FillNormal(a_, 1);
    FillNormal(b_, 2);
    client_ = Connect(0);
  }
  std::unique_ptr<Client> Connect(int lanes) {
    const ClientOptions options{.server = server_.address(), .lanes = lanes};
    return MakeLanedClient(options, MakeChannel(options.server).value(),
                           Client::Create({.server = options.server}).value(), Policy);
  }
  absl::StatusOr<MatmulInfo> Multiply() {
    return client_->Matmul(a_.view(), b_.view(), DType::kBf16, d_, kOptions);
  }
  int uploads() const { return server_.calls(MatrixMethod::kUpload); }

  MatrixServer server_;
  Matrix a_;
  Matrix b_;
  Matrix d_;
  std::unique_ptr<Client> client_;
};

TEST_F(LanedClientTest, WhatIsLargeGoesOverSeveral) {
  const auto info = Multiply();
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_EQ(info->lanes, 3);
  EXPECT_EQ(info->fallback, "");
}

TEST_F(LanedClientTest, WhatIsSmallGoesOverOne) {
  Matrix one(1, 1, DType::kBf16);
  FillNormal(one, 1);
  const auto info = client_->Matmul(one.view(), one.view(), DType::kFp32, d_, kOptions);
  ASSERT_TRUE(info.ok());
  EXPECT_EQ(info->lanes, 1);
  EXPECT_EQ(info->fallback, "");
  EXPECT_EQ(uploads(), 0);
}

TEST_F(LanedClientTest, AnEpilogueGoesOverOne) {
  for (const int lanes : {0, 3}) {
    client_ = Connect(lanes);
    const auto info =
        client_->MatmulWith({.alpha = 2}, a_.view(), b_.view(), DType::kBf16, d_, kOptions);
    ASSERT_TRUE(info.ok()) << info.status();
    EXPECT_EQ(info->lanes, 1);
    EXPECT_EQ(info->fallback.empty(), lanes == 0);
    EXPECT_EQ(uploads(), 0);
  }
  EXPECT_EQ(client_->MatmulWith({}, a_.view(), b_.view(), DType::kBf16, d_, kOptions)->lanes, 3);
}

TEST_F(LanedClientTest, AnOlderServerGetsOneConnection) {
  server_.Fail({.method = MatrixMethod::kUpload, .code = StatusCode::UNIMPLEMENTED});
  const auto info = Multiply();
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_EQ(info->lanes, 1);
  EXPECT_THAT(info->fallback, HasSubstr("UNIMPLEMENTED: told to fail"));
  const int before = uploads();
  EXPECT_EQ(Multiply()->lanes, 1);
  EXPECT_EQ(uploads(), before) << "it was asked again";
}

// A pushback says that there may be room later: who has another way does not wait.
TEST_F(LanedClientTest, AFullServerIsNotWaitedFor) {
  server_.Fail({.method = MatrixMethod::kUpload,
                .skip = 1,
                .code = StatusCode::RESOURCE_EXHAUSTED,
                .pushback_ms = "60000"});
  const auto info = Multiply();
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_EQ(info->lanes, 1);
  EXPECT_THAT(server_.handles(), IsEmpty());
}

TEST_F(LanedClientTest, OtherFailuresAreFailures) {
  server_.Fail({.method = MatrixMethod::kMatmul, .code = StatusCode::INTERNAL});
  EXPECT_EQ(Multiply().status().code(), absl::StatusCode::kInternal);
}

TEST_F(LanedClientTest, TheRestIsOneClients) {
  EXPECT_TRUE(absl::IsUnimplemented(client_->GetServerInfo(kOptions).status()));
  EXPECT_FALSE(client_->CheckHealth("", kOptions).ok());
}

// A and B fit, D does not any more.
class FullServerTest : public LanedClientTest {
 protected:
  FullServerTest() : LanedClientTest({.budget_bytes = 40 * 30 * 2 + 30 * 20 * 2 + 100}) {}
};

TEST_F(FullServerTest, TooLittleRoomMeansOneConnection) {
  const auto info = Multiply();
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_EQ(info->lanes, 1);
  EXPECT_THAT(info->fallback, HasSubstr("RESOURCE_EXHAUSTED: no room (--resident-bytes)"));
  EXPECT_THAT(server_.handles(), IsEmpty());
  const int before = uploads();
  EXPECT_EQ(Multiply()->lanes, 1);
  EXPECT_EQ(uploads(), before) << "it was asked again";
  // What is smaller may fit.
  Matrix small(1, 30, DType::kBf16);
  FillNormal(small, 3);
  EXPECT_EQ(client_->Matmul(small.view(), b_.view(), DType::kBf16, d_, kOptions)->lanes, 3);
}

TEST_F(FullServerTest, WhoAskedForLanesIsToldWhyNot) {
  client_ = Connect(2);
  EXPECT_TRUE(absl::IsResourceExhausted(Multiply().status()));
}

TEST(CreateTest, ChecksTheNumberOfLanes) {
  EXPECT_TRUE(absl::IsInvalidArgument(Client::Create({.lanes = 9}).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(Client::Create({.lanes = -1}).status()));
  EXPECT_TRUE(Client::Create({.lanes = 0}).ok());
}

}  // namespace
}  // namespace tcgemm::client
