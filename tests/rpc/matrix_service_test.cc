// UploadMatrix, DownloadMatrix, ListMatrices and DeleteMatrix through a real server.
#include "server/rpc/matrix_service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "server/rpc/matrix_call.h"
#include "tests/rpc/matrix_client.h"

namespace tcgemm {
namespace {

using grpc::StatusCode;
using testing::HasSubstr;
using testing::Pair;
using testing::UnorderedElementsAre;

std::string Numbers(size_t count) {
  std::string bytes;
  for (size_t i = 0; i < count; ++i) bytes.push_back(static_cast<char>(i * 31 + i / 97));
  return bytes;
}

TEST(MatrixServiceTest, WhatComesBackIsWhatWasSent) {
  for (const bool unified : {false, true}) {
    FakeDeviceOptions device;
    device.unified_memory = unified;
    RpcFixture fixture({}, device);
    const std::string data = Numbers(200 * 301 * 2);
    const Uploaded uploaded =
        Upload(fixture, {UploadHeader("w", 200, 301), UploadRange(50000, data.substr(50000)),
                         UploadRange(0, data.substr(0, 50000))});
    ASSERT_TRUE(uploaded.status.ok()) << uploaded.status.error_message();
    EXPECT_EQ(uploaded.response.handle(), "w");
    EXPECT_TRUE(uploaded.response.complete());
    ASSERT_EQ(uploaded.response.present_size(), 1);
    EXPECT_EQ(uploaded.response.present(0).length(), 200 * 301 * 2);
    const Downloaded all = Download(fixture, "w");
    ASSERT_TRUE(all.status.ok()) << all.status.error_message();
    EXPECT_EQ(all.data, data);
    EXPECT_EQ(all.info.rows(), 200);
    EXPECT_EQ(all.info.cols(), 301);
    EXPECT_EQ(all.info.bytes(), 200 * 301 * 2);
    EXPECT_EQ(Download(fixture, "w", 1001, 77).data, data.substr(1001, 77));
    EXPECT_EQ(Download(fixture, "w", 1001).data, data.substr(1001));
    EXPECT_THAT(fixture.events->AwaitEnded(4),
                UnorderedElementsAre(Pair(absl::StatusCode::kOk, 4)));
    fixture.server->WaitIdle(kInfiniteFuture);
    EXPECT_EQ(fixture.server->totals().completed, 4);
  }
}

TEST(MatrixServiceTest, AnUploadResumes) {
  RpcFixture fixture;
  const std::string data = OnesData(8, 8);
  const Uploaded made = Upload(fixture, {UploadHeader("", 8, 8)});
  ASSERT_TRUE(made.status.ok()) << made.status.error_message();
  const std::string handle = made.response.handle();
  EXPECT_EQ(handle.size(), 32u);
  EXPECT_EQ(made.response.present_size(), 0);
  EXPECT_FALSE(made.response.complete());
  // Broken off: what came before stays.
  v1::UploadMatrixRequest damaged = UploadRange(60, data.substr(60, 8));
  damaged.mutable_range()->set_crc32c(1);
  const Uploaded broken =
      Upload(fixture, {JoinHeader(handle), UploadRange(8, data.substr(8, 10)), damaged});
  EXPECT_EQ(broken.status.error_code(), StatusCode::DATA_LOSS);
  EXPECT_EQ(Download(fixture, handle).status.error_code(), StatusCode::FAILED_PRECONDITION);
  const Uploaded asked = Upload(fixture, {JoinHeader(handle)});
  ASSERT_EQ(asked.response.present_size(), 1);
  EXPECT_EQ(asked.response.present(0).offset(), 8);
  EXPECT_EQ(asked.response.present(0).length(), 10);
  EXPECT_FALSE(asked.response.complete());
  // Overlapping ranges are welcome; what is there stays.
  const Uploaded rest = Upload(fixture, {JoinHeader(handle), UploadRange(0, data.substr(0, 64)),
                                         UploadRange(16, std::string(112, 'x'))});
  ASSERT_TRUE(rest.status.ok());
  EXPECT_TRUE(rest.response.complete());
  EXPECT_EQ(Download(fixture, handle).data, data.substr(0, 64) + std::string(64, 'x'));
}

TEST(MatrixServiceTest, SeveralStreamsFillOneMatrix) {
  RpcFixture fixture;
  const std::string data = Numbers(64 * 64 * 2);
  ASSERT_TRUE(Upload(fixture, {UploadHeader("w", 64, 64)}).status.ok());
  std::vector<std::thread> threads;
  for (size_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::vector<v1::UploadMatrixRequest> messages = {JoinHeader("w")};
      for (size_t at = t * 100; at < data.size(); at += 400) {
        messages.push_back(UploadRange(static_cast<int64_t>(at), data.substr(at, 100)));
      }
      EXPECT_TRUE(Upload(fixture, messages).status.ok());
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(Download(fixture, "w").data, data);
}

TEST(MatrixServiceTest, RefusesBadUploads) {
  RpcFixture fixture;
  ASSERT_TRUE(Upload(fixture, {UploadHeader("taken", 4, 4)}).status.ok());
  v1::UploadMatrixRequest both = JoinHeader("taken");
  both.mutable_header()->set_name("x");
  v1::UploadMatrixRequest shape = JoinHeader("taken");
  shape.mutable_header()->set_rows(5);
  v1::UploadMatrixRequest ttl = JoinHeader("taken");
  ttl.mutable_header()->set_ttl_seconds(1);
  const struct {
    std::vector<v1::UploadMatrixRequest> messages;
    StatusCode code;
    const char* words;
  } kCases[] = {
      {{}, StatusCode::INVALID_ARGUMENT, "without a request message"},
      {{v1::UploadMatrixRequest()}, StatusCode::INVALID_ARGUMENT, "neither header nor range"},
      {{UploadRange(0, "ab")}, StatusCode::INVALID_ARGUMENT, "before the header"},
      {{UploadHeader("a", 4, 4), UploadHeader("b", 4, 4)}, StatusCode::INVALID_ARGUMENT, "second"},
      {{UploadHeader("taken", 4, 4)}, StatusCode::ALREADY_EXISTS, "'taken'"},
      {{UploadHeader("b c", 4, 4)}, StatusCode::INVALID_ARGUMENT, "letters"},
      {{UploadHeader("r", 0, 4)}, StatusCode::INVALID_ARGUMENT, "header.rows is 0"},
      {{UploadHeader("r", 1024, 1024)}, StatusCode::RESOURCE_EXHAUSTED, "1048576 resident"},
      {{JoinHeader("nobody")}, StatusCode::NOT_FOUND, "'nobody'"},
      {{both}, StatusCode::INVALID_ARGUMENT, "both set"},
      {{shape}, StatusCode::INVALID_ARGUMENT, "header.rows is 5, but the matrix has 4"},
      {{ttl}, StatusCode::INVALID_ARGUMENT, "ttl_seconds"},
      {{JoinHeader("taken"), UploadRange(31, "ab")}, StatusCode::INVALID_ARGUMENT, "32 bytes"},
      {{JoinHeader("taken"), UploadRange(-1, "ab")}, StatusCode::INVALID_ARGUMENT, "negative"},
      {{JoinHeader("taken"), UploadRange(INT64_MAX, "ab")}, StatusCode::INVALID_ARGUMENT, "within"},
  };
  for (const auto& test : kCases) {
    const Uploaded uploaded = Upload(fixture, test.messages);
    EXPECT_EQ(uploaded.status.error_code(), test.code) << test.words;
    EXPECT_THAT(uploaded.status.error_message(), HasSubstr(test.words));
  }
}

TEST(MatrixServiceTest, AFullStoreMayBeTriedAgain) {
  RpcFixture fixture;
  ASSERT_TRUE(Upload(fixture, {UploadHeader("unfinished", 512, 960)}).status.ok());
  const Uploaded full = Upload(fixture, {UploadHeader("w", 512, 512)});
  EXPECT_EQ(full.status.error_code(), StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_FALSE(full.status.error_details().empty());
  const Uploaded never = Upload(fixture, {UploadHeader("w", 2048, 512)});
  EXPECT_EQ(never.status.error_code(), StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_TRUE(never.status.error_details().empty()) << "a retry cannot help";
}

TEST(MatrixServiceTest, AnUnnamedUploadThatFailsLeavesNothing) {
  RpcFixture fixture;
  EXPECT_EQ(Upload(fixture, {UploadHeader("", 4, 4), UploadRange(64, "ab")}).status.error_code(),
            StatusCode::INVALID_ARGUMENT);
  EXPECT_TRUE(List(fixture).empty());
  EXPECT_EQ(fixture.engine->residents().pool().used_bytes(), 0u);
}

TEST(MatrixServiceTest, ListsAndDeletes) {
  RpcFixture fixture;
  ASSERT_TRUE(
      Upload(fixture, {UploadHeader("b", 4, 4), UploadRange(0, OnesData(4, 4))}).status.ok());
  ASSERT_TRUE(Upload(fixture, {UploadHeader("a", 2, 3)}).status.ok());
  const std::vector<v1::MatrixInfo> listed = List(fixture);
  ASSERT_EQ(listed.size(), 2u);
  EXPECT_EQ(listed[0].handle(), "a");
  EXPECT_EQ(listed[0].rows(), 2);
  EXPECT_EQ(listed[0].bytes(), 12);
  EXPECT_FALSE(listed[0].complete());
  EXPECT_EQ(listed[1].name(), "b");
  EXPECT_TRUE(listed[1].complete());
  EXPECT_TRUE(Delete(fixture, "b").ok());
  EXPECT_EQ(Delete(fixture, "b").error_code(), StatusCode::NOT_FOUND);
  EXPECT_EQ(Delete(fixture, "").error_code(), StatusCode::NOT_FOUND);
  EXPECT_EQ(Download(fixture, "b").status.error_code(), StatusCode::NOT_FOUND);
  EXPECT_EQ(List(fixture).size(), 1u);
}

TEST(MatrixServiceTest, OthersNeitherSeeNorReachIt) {
  char folder[] = "/tmp/tcgemm-XXXXXX";
  ASSERT_NE(mkdtemp(folder), nullptr);
  {
    RpcOptions options;
    options.listen = {"127.0.0.1:0", std::string("unix:") + folder + "/s"};
    RpcFixture fixture(options);
    ASSERT_TRUE(Upload(fixture, {UploadHeader("w", 1, 1), UploadRange(0, "ab")}).status.ok());
    EXPECT_EQ(List(fixture, 0).size(), 1u);
    EXPECT_TRUE(List(fixture, 1).empty());
    EXPECT_EQ(Delete(fixture, "w", 1).error_code(), StatusCode::NOT_FOUND);
    EXPECT_TRUE(Delete(fixture, "w", 0).ok());
  }
  EXPECT_EQ(rmdir(folder), 0);
}

TEST(MatrixServiceTest, PreloadedOnesCannotBeChanged) {
  RpcFixture fixture;
  const ResidentRef matrix =
      fixture.engine->residents().CreatePreloaded({.name = "w", .rows = 1, .cols = 1}).value();
  matrix->SetComplete();
  ASSERT_EQ(List(fixture).size(), 1u);
  EXPECT_TRUE(List(fixture)[0].preloaded());
  EXPECT_EQ(Delete(fixture, "w").error_code(), StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(Upload(fixture, {JoinHeader("w")}).status.error_code(), StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(Upload(fixture, {UploadHeader("w", 1, 1)}).status.error_code(),
            StatusCode::ALREADY_EXISTS);
}

TEST(MatrixServiceTest, RefusesBadDownloads) {
  RpcFixture fixture;
  ASSERT_TRUE(
      Upload(fixture, {UploadHeader("w", 4, 4), UploadRange(0, OnesData(4, 4))}).status.ok());
  for (const auto& [offset, length] : std::vector<std::pair<int64_t, int64_t>>{
           {32, 1}, {32, 0}, {31, 2}, {-1, 1}, {0, -1}, {1, INT64_MAX}}) {
    EXPECT_EQ(Download(fixture, "w", offset, length).status.error_code(),
              StatusCode::INVALID_ARGUMENT)
        << offset << "+" << length;
  }
  EXPECT_EQ(Download(fixture, "x").status.error_code(), StatusCode::NOT_FOUND);
}

TEST(MatrixServiceTest, DeletedDuringItsUploadItIsGone) {
  RpcFixture fixture;
  const auto stub = fixture.Stub();
  grpc::ClientContext context;
  v1::UploadMatrixResponse response;
  const auto writer = stub->UploadMatrix(&context, &response);
  ASSERT_TRUE(writer->Write(UploadHeader("w", 4, 4)));
  while (List(fixture).empty()) std::this_thread::yield();
  ASSERT_TRUE(Delete(fixture, "w").ok());
  writer->Write(UploadRange(0, OnesData(4, 4)));
  writer->WritesDone();
  EXPECT_EQ(writer->Finish().error_code(), StatusCode::NOT_FOUND);
  EXPECT_TRUE(List(fixture).empty());
}

TEST(MatrixServiceTest, DeadlinesAndCancellationsEndThem) {
  RpcFixture fixture;
  const auto stub = fixture.Stub();
  // Over a connection that is there, so that the server sees the call before it is late.
  v1::GetServerInfoResponse info;
  grpc::ClientContext first;
  ASSERT_TRUE(stub->GetServerInfo(&first, {}, &info).ok());
  grpc::ClientContext late;
  late.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(500));
  v1::UploadMatrixResponse response;
  auto writer = stub->UploadMatrix(&late, &response);
  ASSERT_TRUE(writer->Write(UploadHeader("late", 4, 4)));
  EXPECT_EQ(writer->Finish().error_code(), StatusCode::DEADLINE_EXCEEDED);
  grpc::ClientContext cancelled;
  writer = stub->UploadMatrix(&cancelled, &response);
  ASSERT_TRUE(writer->Write(UploadHeader("cancelled", 4, 4)));
  while (List(fixture).empty()) std::this_thread::yield();
  cancelled.TryCancel();
  EXPECT_EQ(writer->Finish().error_code(), StatusCode::CANCELLED);
  auto ended = fixture.events->AwaitEnded(4);
  ended.erase(absl::StatusCode::kOk);
  EXPECT_THAT(ended, UnorderedElementsAre(Pair(absl::StatusCode::kDeadlineExceeded, 1),
                                          Pair(absl::StatusCode::kCancelled, 1)));
}

TEST(MatrixServiceTest, AStalledUploadIsCutOff) {
  RpcOptions options;
  options.receive_timeout = std::chrono::milliseconds(20);
  RpcFixture fixture(options);
  const auto stub = fixture.Stub();
  grpc::ClientContext context;
  v1::UploadMatrixResponse response;
  const auto writer = stub->UploadMatrix(&context, &response);
  ASSERT_TRUE(writer->Write(UploadHeader("w", 4, 4)));
  const grpc::Status status = writer->Finish();
  EXPECT_EQ(status.error_code(), StatusCode::DEADLINE_EXCEEDED);
  EXPECT_THAT(status.error_message(), HasSubstr("--receive-timeout"));
}

TEST(MatrixServiceTest, DrainingRefusesNewOnesAndWaitsForOldOnes) {
  RpcFixture fixture;
  const auto stub = fixture.Stub();
  grpc::ClientContext context;
  v1::UploadMatrixResponse response;
  const auto writer = stub->UploadMatrix(&context, &response);
  ASSERT_TRUE(writer->Write(UploadHeader("w", 4, 4)));
  while (List(fixture).empty()) std::this_thread::yield();
  fixture.server->RefuseNewCalls();
  EXPECT_EQ(Delete(fixture, "w").error_code(), StatusCode::UNAVAILABLE);
  EXPECT_FALSE(fixture.server->WaitIdle(Clock::Real()->Now()));
  ASSERT_TRUE(writer->Write(UploadRange(0, OnesData(4, 4))));
  writer->WritesDone();
  EXPECT_TRUE(writer->Finish().ok());
  EXPECT_TRUE(response.complete());
  EXPECT_TRUE(fixture.server->WaitIdle(Clock::Real()->Now() + std::chrono::seconds(20)));
}

TEST(MatrixServiceTest, TooManyTransfersAreRefused) {
  RpcFixture fixture;
  const auto stub = fixture.Stub();
  constexpr int kMost = CallContext::kMaxTransfers / 2;  // of one peer
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<grpc::ClientWriter<v1::UploadMatrixRequest>>> writers;
  std::vector<v1::UploadMatrixResponse> responses(kMost);
  for (int i = 0; i < kMost; ++i) {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    writers.push_back(stub->UploadMatrix(contexts.back().get(), &responses[i]));
    ASSERT_TRUE(writers.back()->Write(UploadHeader("w" + std::to_string(i), 1, 1)));
  }
  while (List(fixture).size() < static_cast<size_t>(kMost)) std::this_thread::yield();
  const Uploaded refused = Upload(fixture, {UploadHeader("w", 1, 1)});
  EXPECT_EQ(refused.status.error_code(), StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_FALSE(refused.status.error_details().empty());
  for (auto& writer : writers) {
    writer->WritesDone();
    EXPECT_TRUE(writer->Finish().ok());
  }
  while (Upload(fixture, {UploadHeader("w", 1, 1)}).status.error_code() ==
         StatusCode::RESOURCE_EXHAUSTED) {
  }
}

TEST(MatrixServiceTest, AFailedCopyIsInternalAndMayBeRepeated) {
  RpcFixture fixture;
  ASSERT_TRUE(Upload(fixture, {UploadHeader("w", 4, 4)}).status.ok());
  const std::vector<v1::UploadMatrixRequest> all = {JoinHeader("w"),
                                                    UploadRange(0, OnesData(4, 4))};
  fixture.device->FailNext(FakeOp::kCopyIn, absl::InternalError("told to fail"));
  EXPECT_EQ(Upload(fixture, all).status.error_code(), StatusCode::INTERNAL);
  EXPECT_TRUE(Upload(fixture, all).response.complete());
  fixture.device->FailNext(FakeOp::kCopyOut, absl::InternalError("told to fail"));
  EXPECT_EQ(Download(fixture, "w").status.error_code(), StatusCode::INTERNAL);
  EXPECT_EQ(Download(fixture, "w").data, OnesData(4, 4));
}

}  // namespace
}  // namespace tcgemm
