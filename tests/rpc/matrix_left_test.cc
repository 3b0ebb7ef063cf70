// What is left of calls on matrices whose client left, and of makers who ask twice.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>

#include "tests/rpc/matrix_client.h"

namespace tcgemm {
namespace {

using grpc::StatusCode;
using testing::HasSubstr;
using testing::Pair;

// Waits up to 20 s.
template <typename Condition>
bool Eventually(Condition condition) {
  const TimePoint end = Clock::Real()->Now() + std::chrono::seconds(20);
  while (Clock::Real()->Now() < end) {
    if (condition()) return true;
    std::this_thread::yield();
  }
  return false;
}

// A connection on which an answer stays with the server until somebody reads it: the stream's
// window is smaller than any answer.
std::unique_ptr<v1::MatmulService::Stub> NarrowStub(RpcFixture& fixture) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 5);
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  return v1::MatmulService::NewStub(grpc::CreateCustomChannel(
      fixture.server->addresses().front(), grpc::InsecureChannelCredentials(), arguments));
}

// A read that fails comes before the news that the client left, now and then.
TEST(MatrixLeftTest, AClientThatLeftBeforeItsFirstMessageIsNoMistake) {
  RpcFixture fixture;
  const auto stub = fixture.Stub();
  constexpr int kCalls = 30;  // which one peer may have at once
  for (int i = 0; i < kCalls; ++i) {
    grpc::ClientContext context;
    v1::UploadMatrixResponse response;
    const auto writer = stub->UploadMatrix(&context, &response);
    writer->WritesDone();
    context.TryCancel();
    writer->Finish();
  }
  for (const auto& [code, count] : fixture.events->AwaitEnded(1)) {
    EXPECT_EQ(code, absl::StatusCode::kCancelled) << count;
  }
}

TEST(MatrixLeftTest, AClientThatSaidNothingMadeAMistake) {
  RpcFixture fixture;
  const Uploaded uploaded = Upload(fixture, {});
  EXPECT_EQ(uploaded.status.error_code(), StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(uploaded.status.error_message(), HasSubstr("without a request message"));
}

// However long its client waits before it sends the next byte.
TEST(MatrixLeftTest, AnUploadHoldsNoRoomBetweenMessages) {
  RpcFixture fixture;
  const auto stub = fixture.Stub();
  grpc::ClientContext context;
  v1::UploadMatrixResponse response;
  const auto writer = stub->UploadMatrix(&context, &response);
  ASSERT_TRUE(writer->Write(UploadHeader("w", 4, 4)));
  ASSERT_TRUE(writer->Write(UploadRange(0, OnesData(1, 4))));
  ASSERT_TRUE(Eventually([&] {
    const auto matrices = fixture.engine->residents().List(Caller{});
    return !matrices.empty() && matrices[0]->present_bytes() > 0;
  }));
  ASSERT_TRUE(Delete(fixture, "w").ok());
  EXPECT_TRUE(Eventually([&] { return fixture.engine->residents().pool().used_bytes() == 0; }));
  writer->Write(UploadRange(8, OnesData(1, 4)));
  writer->WritesDone();
  const grpc::Status status = writer->Finish();
  EXPECT_EQ(status.error_code(), StatusCode::NOT_FOUND);
  EXPECT_THAT(status.error_message(), HasSubstr("matrix 'w' was deleted, expired or gave way"));
}

TEST(MatrixLeftTest, AHandleThatNobodyHeardOfGoes) {
  RpcFixture fixture;
  for (int i = 0; i < 20; ++i) {
    const auto stub = NarrowStub(fixture);
    grpc::ClientContext context;
    v1::UploadMatrixResponse response;
    const auto writer = stub->UploadMatrix(&context, &response);
    writer->Write(UploadHeader("", 4, 4));
    writer->Write(UploadRange(0, OnesData(4, 4)));
    writer->WritesDone();
    ASSERT_TRUE(Eventually([&] {
      const auto listed = List(fixture);
      return !listed.empty() && listed[0].complete();
    }));
    // The answer is on its way, or about to be.
    context.TryCancel();
    EXPECT_FALSE(writer->Finish().ok());
    ASSERT_TRUE(Eventually([&] { return List(fixture).empty(); }));
    EXPECT_EQ(fixture.engine->residents().pool().used_bytes(), 0u);
  }
}

TEST(MatrixLeftTest, AHandleThatWasHeardOfStaysWhenALaterStreamBreaks) {
  RpcFixture fixture;
  const std::string handle = Upload(fixture, {UploadHeader("", 4, 4)}).response.handle();
  const Uploaded broken = Upload(fixture, {JoinHeader(handle), UploadRange(64, "ab")});
  EXPECT_EQ(broken.status.error_code(), StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(List(fixture).size(), 1u);
  const auto stub = fixture.Stub();
  grpc::ClientContext context;
  v1::UploadMatrixResponse response;
  const auto writer = stub->UploadMatrix(&context, &response);
  writer->Write(JoinHeader(handle));
  context.TryCancel();
  writer->Finish();
  fixture.events->AwaitEnded(4);
  EXPECT_EQ(List(fixture).size(), 1u);
}

TEST(MatrixLeftTest, ANamedUploadStaysForItsMaker) {
  RpcFixture fixture;
  const auto stub = fixture.Stub();
  grpc::ClientContext context;
  v1::UploadMatrixResponse response;
  const auto writer = stub->UploadMatrix(&context, &response);
  writer->Write(UploadHeader("w", 4, 4));
  ASSERT_TRUE(Eventually([&] { return !List(fixture).empty(); }));
  context.TryCancel();
  writer->Finish();
  EXPECT_THAT(fixture.events->AwaitEnded(2),
              testing::Contains(Pair(absl::StatusCode::kCancelled, 1)));
  EXPECT_TRUE(Upload(fixture, {JoinHeader("w")}).status.ok());
}

TEST(MatrixLeftTest, AResultThatNobodyHeardOfGoes) {
  RpcFixture fixture;
  for (int i = 0; i < 20; ++i) {
    const auto stub = NarrowStub(fixture);
    grpc::ClientContext context;
    grpc::CompletionQueue queue;
    v1::MatmulRequest request = RpcFixture::Ones();
    request.mutable_output()->set_handle("");
    const auto call = stub->AsyncMatmul(&context, request, &queue);
    call->ReadInitialMetadata(nullptr);  // and nobody reads the answer yet
    ASSERT_TRUE(Eventually([&] {
      const auto listed = List(fixture);
      return !listed.empty() && listed[0].complete();
    }));
    context.TryCancel();
    v1::MatmulResponse response;
    grpc::Status status;
    call->Finish(&response, &status, nullptr);
    void* tag;
    bool ok;
    for (int events = 0; events < 2; ++events) queue.Next(&tag, &ok);
    EXPECT_FALSE(status.ok());
    ASSERT_TRUE(Eventually([&] { return List(fixture).empty(); }));
  }
}

TEST(MatrixLeftTest, AMakerMayAskAgain) {
  RpcFixture fixture;
  v1::UploadMatrixRequest mine = UploadHeader("w", 4, 4);
  mine.mutable_header()->set_creation_key("a random key");
  const Uploaded made = Upload(fixture, {mine, UploadRange(0, OnesData(2, 4))});
  ASSERT_TRUE(made.status.ok()) << made.status.error_message();
  const Uploaded again = Upload(fixture, {mine});
  ASSERT_TRUE(again.status.ok()) << again.status.error_message();
  EXPECT_EQ(again.response.present(0).length(), 16);
  EXPECT_EQ(again.response.generation(), made.response.generation());
  v1::UploadMatrixRequest others = mine;
  others.mutable_header()->set_creation_key("another one");
  EXPECT_EQ(Upload(fixture, {others}).status.error_code(), StatusCode::ALREADY_EXISTS);
  EXPECT_EQ(Upload(fixture, {UploadHeader("w", 4, 4)}).status.error_code(),
            StatusCode::ALREADY_EXISTS);
}

TEST(MatrixLeftTest, ANameThatWasGivenToAnotherMatrixIsNotMixedUp) {
  RpcFixture fixture;
  const uint64_t old = Upload(fixture, {UploadHeader("w", 4, 4)}).response.generation();
  EXPECT_NE(old, 0u);
  v1::UploadMatrixRequest join = JoinHeader("w");
  join.mutable_header()->set_generation(old);
  EXPECT_TRUE(Upload(fixture, {join, UploadRange(0, OnesData(2, 4))}).status.ok());
  ASSERT_TRUE(Delete(fixture, "w").ok());
  ASSERT_TRUE(
      Upload(fixture, {UploadHeader("w", 4, 4), UploadRange(0, OnesData(4, 4))}).status.ok());
  const Uploaded late = Upload(fixture, {join, UploadRange(16, OnesData(2, 4))});
  EXPECT_EQ(late.status.error_code(), StatusCode::NOT_FOUND);
  EXPECT_THAT(late.status.error_message(), HasSubstr("header.generation"));
  const uint64_t now = List(fixture)[0].generation();
  EXPECT_NE(now, old);
  EXPECT_EQ(Download(fixture, "w").info.generation(), now);
}

TEST(MatrixLeftTest, PagesOfTheList) {
  RpcFixture fixture;
  for (const char* name : {"c", "a", "b"}) {
    ASSERT_TRUE(Upload(fixture, {UploadHeader(name, 1, 1)}).status.ok());
  }
  const auto list = [&](int size, const std::string& token, v1::ListMatricesResponse* page) {
    grpc::ClientContext context;
    v1::ListMatricesRequest request;
    request.set_page_size(size);
    request.set_page_token(token);
    return fixture.Stub()->ListMatrices(&context, request, page);
  };
  v1::ListMatricesResponse page;
  ASSERT_TRUE(list(0, "", &page).ok());
  EXPECT_EQ(page.matrices_size(), 3);
  ASSERT_TRUE(list(2, "", &page).ok());
  ASSERT_EQ(page.matrices_size(), 2);
  EXPECT_EQ(page.matrices(0).handle(), "a");
  EXPECT_EQ(page.next_page_token(), "b");
  ASSERT_TRUE(list(2, page.next_page_token(), &page).ok());
  ASSERT_EQ(page.matrices_size(), 1);
  EXPECT_EQ(page.matrices(0).handle(), "c");
  EXPECT_EQ(page.next_page_token(), "");
  ASSERT_TRUE(list(3, "", &page).ok());
  EXPECT_EQ(page.next_page_token(), "") << "a full last page";
  EXPECT_EQ(list(-1, "", &page).error_code(), StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(list(1, std::string(129, 'x'), &page).error_code(), StatusCode::INVALID_ARGUMENT);
}

}  // namespace
}  // namespace tcgemm
