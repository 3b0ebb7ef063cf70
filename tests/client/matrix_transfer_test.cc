// Uploads, downloads, lists and deletions whose calls break, against a server in this process that
// breaks them where it is told.
#include "client/matrix_transfer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "client/matrix_client.h"
#include "tests/client/matrix_server.h"

namespace tcgemm::client {
namespace {

using grpc::StatusCode;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr CallOptions kOptions{.timeout = std::chrono::seconds(20)};
constexpr size_t kMiB = size_t{1} << 20;

// 6 MiB and an odd rest, in rows that do not fit the pieces.
constexpr int64_t kRows = 1027;
constexpr int64_t kCols = 3063;
constexpr size_t kBytes = kRows * kCols * 2;

class MatrixTransferTest : public testing::TestWithParam<int> {
 protected:
  MatrixTransferTest() : matrix_(kRows, kCols, DType::kBf16) {
    FillNormal(matrix_, 1);
    Restart({});
  }

  void Restart(const MatrixServer::Options& options) {
    server_ = std::make_unique<MatrixServer>(options);
    client_ = MatrixClient::Create({.server = server_->address(), .lanes = GetParam()}).value();
  }
  absl::StatusOr<std::string> Upload(const std::string& name) {
    return client_->Upload(matrix_.view(), {.name = name}, kOptions);
  }
  std::string Bytes() const { return {matrix_.data<char>(), kBytes}; }
  std::string BytesOf(const Matrix& matrix) const { return {matrix.data<char>(), matrix.bytes()}; }
  // The server has all of `handle`, and it is right.
  void ExpectThere(const std::string& handle) {
    EXPECT_TRUE(server_->BytesOf(handle) == Bytes()) << handle;
  }

  Matrix matrix_;
  std::unique_ptr<MatrixServer> server_;
  std::unique_ptr<MatrixClient> client_;
};

INSTANTIATE_TEST_SUITE_P(Lanes, MatrixTransferTest, testing::Values(1, 2, 3, 8));

TEST_P(MatrixTransferTest, UpAndDown) {
  // Two lanes cannot but meet: no more than half of it is under way before the server reads on.
  if (GetParam() == 2) server_->AwaitPeers(2);
  ASSERT_EQ(Upload("w").value(), "w");
  ExpectThere("w");
  EXPECT_EQ(server_->received_bytes(), kBytes) << "nothing is sent twice";
  EXPECT_LE(server_->peers(), GetParam());
  Matrix back;
  ASSERT_TRUE(client_->Download("w", back, kOptions).ok());
  EXPECT_EQ(back.rows(), kRows);
  EXPECT_TRUE(BytesOf(back) == Bytes());
}

// Fewer bytes than lanes.
TEST_P(MatrixTransferTest, TinyOnesGoToo) {
  Matrix tiny(1, 1, DType::kBf16);
  FillNormal(tiny, 2);
  const std::string handle = client_->Upload(tiny.view(), {}, kOptions).value();
  EXPECT_EQ(server_->BytesOf(handle), BytesOf(tiny));
  Matrix back;
  ASSERT_TRUE(client_->Download(handle, back, kOptions).ok());
  EXPECT_EQ(BytesOf(back), BytesOf(tiny));
}

TEST_P(MatrixTransferTest, ATimeToLiveIsTheServers) {
  const UploadOptions options{.name = "w", .ttl = std::chrono::seconds(7)};
  ASSERT_TRUE(client_->Upload(matrix_.view(), options, kOptions).ok());
  EXPECT_THAT(server_->times_to_live(), ElementsAre(7));
}

TEST_P(MatrixTransferTest, GapsBetweenRowsDoNotTravel) {
  Matrix wide(kRows, kCols, kCols + 5, DType::kBf16);
  FillNormal(wide, 1);
  ASSERT_TRUE(client_->Upload(wide.view(), {.name = "w"}, kOptions).ok());
  ExpectThere("w");
}

TEST_P(MatrixTransferTest, AnUploadGoesOnWhereItBroke) {
  server_->Fail(
      {.method = MatrixMethod::kUpload, .skip = GetParam() == 1 ? 0 : 1, .bytes = 2 * kMiB});
  ASSERT_EQ(Upload("w").value(), "w");
  ExpectThere("w");
  EXPECT_EQ(server_->received_bytes(), kBytes) << "what was there was sent again";
}

TEST_P(MatrixTransferTest, AnUploadSurvivesManyBreaks) {
  server_->Fail({.method = MatrixMethod::kUpload, .skip = 1, .count = 6, .bytes = kMiB / 2});
  ASSERT_TRUE(Upload("w").ok());
  ExpectThere("w");
}

// The server made the matrix, and the client never heard of it.
TEST_P(MatrixTransferTest, AFirstAnswerThatWasLostIsAskedForAgain) {
  server_->Fail({.method = MatrixMethod::kUpload, .after = true});
  ASSERT_EQ(Upload("w").value(), "w");
  ExpectThere("w");
}

TEST_P(MatrixTransferTest, SomebodyElsesMatrixIsNotTouched) {
  const std::string others(kBytes, 'x');
  server_->Put("w", kRows, kCols, others);
  EXPECT_TRUE(absl::IsAlreadyExists(Upload("w").status()));
  // Nor after an attempt of which nobody knows how far it came.
  server_->Fail({.method = MatrixMethod::kUpload});
  const absl::Status status = Upload("w").status();
  EXPECT_TRUE(absl::IsAlreadyExists(status)) << status;
  EXPECT_EQ(server_->received_bytes(), 0u);
  EXPECT_TRUE(server_->BytesOf("w") == others);
}

// A server without creation keys cannot tell: the user is told so.
TEST_P(MatrixTransferTest, WithAnOlderServerALostAnswerIsSaid) {
  Restart({.old = true});
  server_->Fail({.method = MatrixMethod::kUpload, .after = true});
  const absl::Status status = Upload("w").status();
  EXPECT_TRUE(absl::IsAlreadyExists(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("resume it"));
  ASSERT_TRUE(client_->Resume("w", matrix_.view(), kOptions).ok());
  ExpectThere("w");
}

TEST_P(MatrixTransferTest, AnOlderServerWillDo) {
  Restart({.old = true});
  ASSERT_TRUE(Upload("w").ok());
  ExpectThere("w");
  Matrix back;
  ASSERT_TRUE(client_->Download("w", back, kOptions).ok());
  EXPECT_TRUE(BytesOf(back) == Bytes());
}

TEST_P(MatrixTransferTest, ResumeSendsWhatIsMissing) {
  server_->Fail({.method = MatrixMethod::kUpload,
                 .skip = GetParam() == 1 ? 0 : 1,
                 .code = StatusCode::DATA_LOSS,
                 .bytes = GetParam() == 1 ? 3 * kMiB : 1});
  EXPECT_TRUE(absl::IsDataLoss(Upload("w").status())) << "no retry helps: it is said";
  EXPECT_EQ(server_->BytesOf("w"), "");
  server_->Fail({.method = MatrixMethod::kUpload, .skip = 1, .bytes = 1});
  ASSERT_TRUE(client_->Resume("w", matrix_.view(), kOptions).ok());
  ExpectThere("w");
  // What lanes had under way when another one failed may have come too late to be asked for.
  const size_t under_way = GetParam() == 1 ? 0 : static_cast<size_t>(GetParam()) * 2 * kMiB;
  EXPECT_LE(server_->received_bytes(), kBytes + under_way) << "what was there was sent again";
  EXPECT_TRUE(absl::IsNotFound(client_->Resume("nobody", matrix_.view(), kOptions)));
}

TEST_P(MatrixTransferTest, AnUnnamedUploadThatFailsLeavesNothing) {
  server_->Fail({.method = MatrixMethod::kUpload,
                 .skip = 1,
                 .count = 99,
                 .code = StatusCode::INTERNAL,
                 .bytes = 1});
  EXPECT_EQ(Upload("").status().code(), absl::StatusCode::kInternal);
  EXPECT_THAT(server_->handles(), IsEmpty());
}

TEST_P(MatrixTransferTest, AServerThatWasStartedAnewGetsEverythingAgain) {
  for (const std::string name : {"", "w"}) {
    server_->RestartAfter(2 * kMiB);
    const auto handle = Upload(name);
    ASSERT_TRUE(handle.ok()) << handle.status();
    ExpectThere(*handle);
    EXPECT_EQ(server_->handles().size(), 1u);
    server_->Remove(*handle);
  }
}

// Somebody deleted it for good: there is nothing to go on with.
TEST_P(MatrixTransferTest, AResumedMatrixThatWasDeletedIsNotMadeAgain) {
  server_->Fail({.method = MatrixMethod::kUpload,
                 .skip = GetParam() == 1 ? 0 : 1,
                 .code = StatusCode::INTERNAL,
                 .bytes = 1});
  EXPECT_FALSE(Upload("w").ok());
  server_->RestartAfter(1);
  EXPECT_TRUE(absl::IsNotFound(client_->Resume("w", matrix_.view(), kOptions)));
  EXPECT_THAT(server_->handles(), IsEmpty());
}

TEST_P(MatrixTransferTest, AFullServerIsWaitedForAsItSays) {
  server_->Fail({.method = MatrixMethod::kUpload,
                 .code = StatusCode::RESOURCE_EXHAUSTED,
                 .pushback_ms = "5"});
  ASSERT_TRUE(Upload("w").ok());
  server_->Fail({.method = MatrixMethod::kUpload, .code = StatusCode::RESOURCE_EXHAUSTED});
  EXPECT_TRUE(absl::IsResourceExhausted(Upload("x").status()));
  server_->Fail({.method = MatrixMethod::kDelete,
                 .code = StatusCode::RESOURCE_EXHAUSTED,
                 .pushback_ms = "5"});
  EXPECT_TRUE(client_->Delete("w", kOptions).ok());
}

TEST_P(MatrixTransferTest, WithoutRetriesOneFailureIsOne) {
  server_->Fail({.method = MatrixMethod::kUpload});
  const CallOptions once{.timeout = kOptions.timeout, .retry = false};
  EXPECT_TRUE(absl::IsUnavailable(client_->Upload(matrix_.view(), {.name = "w"}, once).status()));
  EXPECT_EQ(server_->calls(MatrixMethod::kUpload), 1);
}

TEST_P(MatrixTransferTest, ADownloadGoesOnWhereItBroke) {
  server_->Put("w", kRows, kCols, Bytes());
  const int probes = GetParam() == 1 ? 0 : 1;
  server_->Fail({.method = MatrixMethod::kDownload, .skip = probes, .bytes = kMiB / 2});
  server_->Fail({.method = MatrixMethod::kDownload, .skip = probes, .count = 3, .bytes = kMiB / 4});
  Matrix back;
  const absl::Status status = client_->Download("w", back, kOptions);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_TRUE(BytesOf(back) == Bytes());
}

TEST_P(MatrixTransferTest, ALostLastWordIsNoLoss) {
  server_->Put("w", kRows, kCols, Bytes());
  const int probes = GetParam() == 1 ? 0 : 1;
  server_->Fail({.method = MatrixMethod::kDownload, .skip = probes, .count = 8, .after = true});
  Matrix back;
  ASSERT_TRUE(client_->Download("w", back, kOptions).ok());
  EXPECT_TRUE(BytesOf(back) == Bytes());
  EXPECT_LE(server_->calls(MatrixMethod::kDownload), probes + GetParam());
}

// Deleted and uploaded anew between two attempts: half of each would be nobody's matrix.
TEST_P(MatrixTransferTest, HalvesOfTwoMatricesAreNotMixed) {
  server_->Put("w", kRows, kCols, Bytes());
  const int probes = GetParam() == 1 ? 0 : 1;
  server_->Fail({.method = MatrixMethod::kDownload, .skip = probes, .count = 8, .bytes = kMiB / 2});
  server_->ReplaceDuringDownload("w", std::string(kBytes, 'n'), kMiB / 4);
  Matrix back;
  const absl::Status status = client_->Download("w", back, kOptions);
  EXPECT_TRUE(absl::IsAborted(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("replaced"));
}

TEST_P(MatrixTransferTest, WhatIsNotThereIsNotFound) {
  Matrix back;
  EXPECT_TRUE(absl::IsNotFound(client_->Download("nobody", back, kOptions)));
  EXPECT_TRUE(absl::IsNotFound(client_->Delete("nobody", kOptions)));
}

TEST_P(MatrixTransferTest, TheListIsReadToItsEnd) {
  Restart({.page_limit = 2});
  for (const char* name : {"a", "b", "c", "d", "e"}) server_->Put(name, 1, 1, "xy");
  server_->Fail({.method = MatrixMethod::kList, .skip = 1});
  const auto listed = client_->List(kOptions);
  ASSERT_TRUE(listed.ok()) << listed.status();
  std::vector<std::string> handles;
  for (const StoredMatrix& matrix : *listed) handles.push_back(matrix.handle);
  EXPECT_THAT(handles, ElementsAre("a", "b", "c", "d", "e"));
  EXPECT_EQ(server_->calls(MatrixMethod::kList), 4) << "three pages, one of them twice";
}

TEST_P(MatrixTransferTest, ADeletionWhoseAnswerWasLostIsDone) {
  server_->Put("w", 1, 1, "xy");
  server_->Fail({.method = MatrixMethod::kDelete, .after = true});
  EXPECT_TRUE(client_->Delete("w", kOptions).ok());
  EXPECT_THAT(server_->handles(), IsEmpty());
}

TEST_P(MatrixTransferTest, AProductIsTriedAgain) {
  server_->Put("w", 1, 1, std::string("\x80\x3f", 2));
  server_->Fail({.method = MatrixMethod::kMatmul});
  Matrix d;
  const auto product = client_->Multiply({.handle = "w"}, {.handle = "w"}, DType::kFp32,
                                         /*keep=*/false, "", d, kOptions);
  ASSERT_TRUE(product.ok()) << product.status();
  EXPECT_EQ(product->info.attempts, 2);
  EXPECT_EQ(d.data<float>()[0], 1);
}

TEST_P(MatrixTransferTest, AKeptResultWhoseAnswerWasLostIsSaid) {
  server_->Put("w", 1, 1, std::string("\x80\x3f", 2));
  server_->Fail({.method = MatrixMethod::kMatmul, .after = true});
  Matrix d;
  const absl::Status status = client_
                                  ->Multiply({.handle = "w"}, {.handle = "w"}, DType::kFp32,
                                             /*keep=*/true, "d", d, kOptions)
                                  .status();
  EXPECT_TRUE(absl::IsAlreadyExists(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("answer was lost"));
}

TEST_P(MatrixTransferTest, ATimeoutEndsAllLanes) {
  server_->Fail({.method = MatrixMethod::kUpload, .count = 9999});
  const TimePoint start = Clock::Real()->Now();
  const absl::Status status =
      client_->Upload(matrix_.view(), {.name = "w"}, {.timeout = std::chrono::milliseconds(300)})
          .status();
  EXPECT_TRUE(absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status)) << status;
  EXPECT_LT(Clock::Real()->Now() - start, std::chrono::seconds(10));
}

TEST(MatrixClientTest, ChecksBeforeItCalls) {
  EXPECT_TRUE(absl::IsInvalidArgument(MatrixClient::Create({.lanes = 9}).status()));
  MatrixServer server;
  const auto client = MatrixClient::Create({.server = server.address()}).value();
  Matrix fp32(1, 1, DType::kFp32);
  Matrix bf16(1, 1, DType::kBf16);
  EXPECT_TRUE(absl::IsInvalidArgument(client->Upload(fp32.view(), {}, kOptions).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(client->Upload(bf16.view(), {}, {}).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(client->Resume("w", bf16.view(), {})));
  EXPECT_TRUE(absl::IsInvalidArgument(client->Download("w", bf16, {})));
  EXPECT_TRUE(absl::IsInvalidArgument(client->List({}).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(client->Delete("w", {})));
  EXPECT_EQ(server.peers(), 0);
}

}  // namespace
}  // namespace tcgemm::client
