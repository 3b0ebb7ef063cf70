// Who may call, how much at once, and what is written of it: through a real server.
#include "server/rpc/call_record.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <thread>

#include "tests/rpc/rpc_fixture.h"

namespace tcgemm {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class TestFile {
 public:
  explicit TestFile(const std::string& name, const std::string& text = "")
      : path_(::testing::TempDir() + "/tcgemm-" + name + "-" + std::to_string(getpid())) {
    std::ofstream(path_) << text;
  }
  ~TestFile() { std::remove(path_.c_str()); }
  const std::string& path() const { return path_; }
  std::string Read() const {
    std::ifstream file(path_);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }

 private:
  const std::string path_;
};

// printf %s one | sha256sum
constexpr char kTokens[] = "alice:7692c3ad3540bb803c020b3aee66cd8887123234ea0c6e7143c0add73ff431ed";

grpc::Status CallWith(RpcFixture& fixture, const std::string& authorization,
                      const std::string& trace = "") {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
  if (!authorization.empty()) context.AddMetadata("authorization", authorization);
  if (!trace.empty()) context.AddMetadata("traceparent", trace);
  v1::MatmulResponse response;
  return fixture.Stub()->Matmul(&context, RpcFixture::Ones(), &response);
}

TEST(CallRecordTest, WithATokenFileEveryMethodWantsOne) {
  const TestFile file("tokens", kTokens);
  const auto tokens = TokenFile::Open(file.path(), [](bool, const std::string&) {}).value();
  RpcOptions options;
  options.tokens = tokens.get();
  RpcFixture fixture(options);
  EXPECT_TRUE(CallWith(fixture, "Bearer one").ok());
  const grpc::Status none = CallWith(fixture, "");
  const grpc::Status wrong = CallWith(fixture, "Bearer two");
  EXPECT_EQ(none.error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(wrong.error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(none.error_message(), wrong.error_message());
  const auto stub = fixture.Stub();
  {
    grpc::ClientContext context;
    v1::GetServerInfoResponse info;
    EXPECT_EQ(stub->GetServerInfo(&context, {}, &info).error_code(),
              grpc::StatusCode::UNAUTHENTICATED);
  }
  {
    grpc::ClientContext context;
    v1::ListMatricesResponse list;
    EXPECT_EQ(stub->ListMatrices(&context, {}, &list).error_code(),
              grpc::StatusCode::UNAUTHENTICATED);
  }
  {
    grpc::ClientContext context;
    const auto stream = stub->HoldRegion(&context);
    EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::UNAUTHENTICATED);
  }
  fixture.events->AwaitEnded(6);
  EXPECT_EQ(fixture.events->rejected()[RejectReason::kCredentials], 4);
}

TEST(CallRecordTest, ACallerHasSoManyCallsUnderWay) {
  RpcOptions options;
  options.caller_limits.max_inflight = 1;
  RpcFixture fixture(options);
  // A call whose payload never comes keeps the place.
  const auto stub = fixture.Stub();
  grpc::ClientContext context;
  const auto open = stub->MatmulStream(&context);
  while (fixture.server->totals().admitted == 0) std::this_thread::yield();
  const grpc::Status second = fixture.Call(RpcFixture::Ones());
  EXPECT_EQ(second.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(second.error_message(), HasSubstr("--max-inflight-per-caller"));
  EXPECT_FALSE(second.error_details().empty());  // google.rpc.RetryInfo
  EXPECT_GT(fixture.events->rejected()[RejectReason::kCaller], 0);
  fixture.server->SetCallerLimits({.max_inflight = 2});
  EXPECT_TRUE(fixture.Call(RpcFixture::Ones()).ok());
  context.TryCancel();
  open->Finish();
}

TEST(CallRecordTest, ACallersBytesAreLimited) {
  RpcOptions options;
  options.caller_limits.queue_bytes = 4096;
  RpcFixture fixture(options);
  EXPECT_TRUE(fixture.Call(RpcFixture::Ones(4, 5, 6)).ok());
  const grpc::Status large = fixture.Call(RpcFixture::Ones(64, 64, 64));
  EXPECT_EQ(large.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(large.error_message(), HasSubstr("limit 4096 (--queue-bytes-per-caller)"));
  EXPECT_TRUE(large.error_details().empty());  // it never fits: no use in trying again
  EXPECT_TRUE(fixture.Call(RpcFixture::Ones(4, 5, 6)).ok());  // what was refused is given back
}

TEST(CallRecordTest, EveryCallIsALineOfTheAccessLog) {
  const TestFile tokens_file("tokens", kTokens);
  const TestFile log_file("access");
  const auto tokens = TokenFile::Open(tokens_file.path(), [](bool, const std::string&) {}).value();
  auto log = AccessLog::Open(log_file.path()).value();
  {
    RpcOptions options;
    options.tokens = tokens.get();
    options.access_log = log.get();
    RpcFixture fixture(options);
    EXPECT_TRUE(
        CallWith(fixture, "Bearer one", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
            .ok());
    EXPECT_FALSE(CallWith(fixture, "Bearer s3cret").ok());
    fixture.events->AwaitEnded(2);
  }
  log.reset();
  const std::string text = log_file.Read();
  EXPECT_THAT(text, HasSubstr("\"caller\":\"token:alice\",\"peer\":\"tcp\",\"bytes_in\":"));
  EXPECT_THAT(text, HasSubstr("\"m\":4,\"n\":5,\"k\":6,\"stages_ms\":{\"receive\":"));
  EXPECT_THAT(text, HasSubstr("\"trace_id\":\"0af7651916cd43dd8448eb211c80319c\""));
  EXPECT_THAT(text, HasSubstr("\"code\":\"UNAUTHENTICATED\""));
  EXPECT_THAT(text, Not(HasSubstr("s3cret")));
  EXPECT_THAT(text, Not(HasSubstr("Bearer")));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2);
}

TEST(CallRecordTest, FailedCallsAreKeptAndQuickOnesAreNot) {
  const TestFile tokens_file("tokens", kTokens);
  const auto tokens = TokenFile::Open(tokens_file.path(), [](bool, const std::string&) {}).value();
  NotableCalls calls(std::chrono::hours(1));
  RpcOptions options;
  options.tokens = tokens.get();
  options.notable_calls = &calls;
  RpcFixture fixture(options);
  EXPECT_TRUE(CallWith(fixture, "Bearer one").ok());
  EXPECT_FALSE(
      CallWith(fixture, "Bearer s3cret", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
          .ok());
  fixture.events->AwaitEnded(2);
  const NotableCalls::Snapshot now = calls.Read();
  EXPECT_EQ(now.slow.count, 0u);
  ASSERT_EQ(now.failed.count, 1u);
  const NotableCall& call = *now.failed.calls[0];
  EXPECT_EQ(call.method, "Matmul");
  EXPECT_EQ(call.code, absl::StatusCode::kUnauthenticated);
  EXPECT_EQ(call.caller, "anonymous");
  EXPECT_EQ(call.trace_id, "0af7651916cd43dd8448eb211c80319c");
  EXPECT_THAT(call.message, Not(HasSubstr("s3cret")));
  EXPECT_GT(call.ended_unix_ms, 1'700'000'000'000);
}

TEST(CallRecordTest, SlowCallsAreKeptWithTheirStages) {
  NotableCalls calls(Nanos(0));
  RpcOptions options;
  options.notable_calls = &calls;
  RpcFixture fixture(options);
  EXPECT_TRUE(CallWith(fixture, "").ok());
  v1::MatmulRequest bad = RpcFixture::Ones();
  bad.mutable_a()->set_cols(7);
  const grpc::Status status = fixture.Call(bad);
  fixture.events->AwaitEnded(2);
  const NotableCalls::Snapshot now = calls.Read();
  ASSERT_EQ(now.slow.count, 1u);
  const NotableCall& slow = *now.slow.calls[0];
  EXPECT_EQ(slow.shape->m, 4);
  EXPECT_EQ(slow.shape->n, 5);
  EXPECT_EQ(slow.shape->k, 6);
  EXPECT_TRUE(slow.stages.has_value());
  EXPECT_GT(slow.duration, Nanos(0));
  ASSERT_EQ(now.failed.count, 1u);
  EXPECT_EQ(now.failed.calls[0]->message, status.error_message());
  EXPECT_FALSE(now.failed.calls[0]->stages.has_value());
}

TEST(CallRecordTest, EveryMethodsCallsAreKept) {
  NotableCalls calls(Nanos(0));
  RpcOptions options;
  options.notable_calls = &calls;
  RpcFixture fixture(options);
  const auto stub = fixture.Stub();
  {
    grpc::ClientContext context;
    v1::GetServerInfoResponse info;
    EXPECT_TRUE(stub->GetServerInfo(&context, {}, &info).ok());
  }
  {
    grpc::ClientContext context;
    v1::DeleteMatrixRequest request;
    request.set_handle("none");
    v1::DeleteMatrixResponse response;
    EXPECT_FALSE(stub->DeleteMatrix(&context, request, &response).ok());
  }
  {
    grpc::ClientContext context;
    EXPECT_FALSE(stub->HoldRegion(&context)->Finish().ok());  // not over TCP
  }
  fixture.events->AwaitEnded(3);
  const NotableCalls::Snapshot now = calls.Read();
  ASSERT_EQ(now.slow.count, 1u);
  EXPECT_EQ(now.slow.calls[0]->method, "GetServerInfo");
  ASSERT_EQ(now.failed.count, 2u);
  EXPECT_EQ(now.failed.calls[0]->method, "HoldRegion");
  EXPECT_EQ(now.failed.calls[1]->method, "DeleteMatrix");
  EXPECT_EQ(now.failed.calls[1]->code, absl::StatusCode::kNotFound);
}

TEST(CallRecordTest, AConnectionThatIsOldEnoughFailsNoCall) {
  RpcOptions options;
  options.max_connection_age = std::chrono::milliseconds(50);
  RpcFixture fixture(options);
  // A stock channel: gRPC itself sends a call again that met the end of a connection unsent. With
  // its retries turned off, as in fixture.Stub(), such a call is UNAVAILABLE.
  const auto stub = v1::MatmulService::NewStub(
      grpc::CreateChannel(fixture.server->addresses()[0], grpc::InsecureChannelCredentials()));
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(2);
  int calls = 0;
  for (; std::chrono::steady_clock::now() < end || calls < 100; ++calls) {
    grpc::ClientContext context;
    v1::MatmulResponse response;
    const grpc::Status status = stub->Matmul(&context, RpcFixture::Ones(), &response);
    ASSERT_TRUE(status.ok()) << status.error_message();
  }
}

}  // namespace
}  // namespace tcgemm
