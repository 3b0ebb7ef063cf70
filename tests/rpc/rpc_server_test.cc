#include "server/rpc/rpc_server.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "google/rpc/retry_info.pb.h"
#include "tests/rpc/rpc_fixture.h"

namespace tcgemm {
namespace {

using absl::StatusCode;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

void ExpectAll(const v1::MatmulResponse& response, float expected) {
  std::vector<float> d(response.d().size() / sizeof(float));
  std::memcpy(d.data(), response.d().data(), response.d().size());
  EXPECT_EQ(static_cast<int64_t>(d.size()), response.rows() * response.cols());
  for (const float value : d) ASSERT_EQ(value, expected);
}

// Every lease comes back; gRPC may let go of the last slice a moment after the call has ended.
TEST(RpcServerTest, MultipliesSmallAndLarge) {
  RpcFixture fixture;
  v1::MatmulResponse response;
  const grpc::Status small = fixture.Call(RpcFixture::Ones(), &response);
  ASSERT_TRUE(small.ok()) << small.error_message();
  ExpectAll(response, 6);
  // Both operands and the result beyond what is copied in a reaction.
  const grpc::Status large = fixture.Call(RpcFixture::Ones(700, 600, 1200), &response);
  ASSERT_TRUE(large.ok()) << large.error_message();
  ExpectAll(response, 1200);
  EXPECT_THAT(fixture.events->AwaitEnded(2), UnorderedElementsAre(Pair(StatusCode::kOk, 2)));
  AwaitEmptyPool(fixture);
  fixture.server->WaitIdle(kInfiniteFuture);
  const CallTotals totals = fixture.server->totals();
  EXPECT_EQ(totals.started, 2);
  EXPECT_EQ(totals.admitted, 2);
  EXPECT_EQ(totals.completed, 2);
}

TEST(RpcServerTest, CompressedRequestsAreUnimplemented) {
  RpcFixture fixture;
  grpc::ClientContext context;
  context.set_compression_algorithm(GRPC_COMPRESS_GZIP);
  v1::MatmulResponse response;
  const grpc::Status status =
      fixture.Stub()->Matmul(&context, RpcFixture::Ones(64, 64, 64), &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNIMPLEMENTED);
}

TEST(RpcServerTest, MessagesBeyondTheLimitAreNamed) {
  RpcOptions options;
  options.max_message_bytes = 4096;
  options.receive_bytes = 8192;
  RpcFixture fixture(options);
  const grpc::Status status = fixture.Call(RpcFixture::Ones(64, 64, 64));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_NE(status.error_message().find("--max-message-bytes"), std::string::npos);
  EXPECT_TRUE(status.error_details().empty()) << "a retry cannot help";
  EXPECT_THAT(fixture.events->AwaitEnded(1),
              UnorderedElementsAre(Pair(StatusCode::kResourceExhausted, 1)));
  EXPECT_EQ(fixture.events->rejected()[RejectReason::kMessage], 1);
  EXPECT_TRUE(fixture.Call(RpcFixture::Ones()).ok()) << "its share came back";
}

TEST(RpcServerTest, TooManyCallsAreToldWhenToRetry) {
  RpcOptions options;
  options.max_inflight = 1;
  RpcFixture fixture(options);
  fixture.device->Hold(FakeOp::kLaunch);
  std::thread first([&] { EXPECT_TRUE(fixture.Call(RpcFixture::Ones()).ok()); });
  fixture.device->AwaitHeld(FakeOp::kLaunch);
  grpc::ClientContext context;
  v1::MatmulResponse response;
  const grpc::Status status = fixture.Stub()->Matmul(&context, RpcFixture::Ones(), &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_NE(status.error_message().find("--max-inflight"), std::string::npos);
  EXPECT_EQ(context.GetServerTrailingMetadata().count("grpc-retry-pushback-ms"), 1u);
  google::rpc::Status details;
  ASSERT_TRUE(details.ParseFromString(status.error_details()));
  google::rpc::RetryInfo info;
  ASSERT_EQ(details.details_size(), 1);
  ASSERT_TRUE(details.details(0).UnpackTo(&info));
  EXPECT_GT(info.retry_delay().nanos(), 0);
  fixture.device->Release(FakeOp::kLaunch);
  first.join();
}

TEST(RpcServerTest, ADeadlineBehindASlowJobIsKept) {
  RpcFixture fixture;
  fixture.device->Hold(FakeOp::kLaunch);
  std::thread slow([&] { EXPECT_TRUE(fixture.Call(RpcFixture::Ones()).ok()); });
  fixture.device->AwaitHeld(FakeOp::kLaunch);
  EXPECT_EQ(fixture.Call(RpcFixture::Ones(), nullptr, /*timeout_ms=*/800).error_code(),
            grpc::StatusCode::DEADLINE_EXCEEDED);
  // The server saw it too, while the slow job still holds the device.
  fixture.events->AwaitQueued(0);
  fixture.device->Release(FakeOp::kLaunch);
  slow.join();
  EXPECT_THAT(
      fixture.events->AwaitEnded(2),
      UnorderedElementsAre(Pair(StatusCode::kOk, 1), Pair(StatusCode::kDeadlineExceeded, 1)));
  EXPECT_EQ(fixture.events->launches(), 1);
  AwaitEmptyPool(fixture);
}

TEST(RpcServerTest, ARunningJobsDeadlineEndsTheCallNotTheJob) {
  RpcFixture fixture;
  fixture.device->Hold(FakeOp::kLaunch);
  EXPECT_EQ(fixture.Call(RpcFixture::Ones(), nullptr, /*timeout_ms=*/800).error_code(),
            grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_THAT(fixture.events->AwaitEnded(1),
              UnorderedElementsAre(Pair(StatusCode::kDeadlineExceeded, 1)));
  EXPECT_EQ(fixture.engine->pending_jobs(), 1);
  fixture.device->Release(FakeOp::kLaunch);
  EXPECT_TRUE(fixture.Call(RpcFixture::Ones()).ok());
  EXPECT_EQ(fixture.events->cancelled()[Stage::kKernel], 1);
}

TEST(RpcServerTest, ACancelledCallLeavesTheQueue) {
  RpcFixture fixture;
  fixture.device->Hold(FakeOp::kLaunch);
  std::thread slow([&] { EXPECT_TRUE(fixture.Call(RpcFixture::Ones()).ok()); });
  fixture.device->AwaitHeld(FakeOp::kLaunch);
  grpc::ClientContext context;
  std::thread cancelled([&] {
    v1::MatmulResponse response;
    EXPECT_EQ(fixture.Stub()->Matmul(&context, RpcFixture::Ones(), &response).error_code(),
              grpc::StatusCode::CANCELLED);
  });
  fixture.events->AwaitQueued(1);
  context.TryCancel();
  fixture.events->AwaitQueued(0);
  cancelled.join();
  fixture.device->Release(FakeOp::kLaunch);
  slow.join();
  fixture.events->AwaitEnded(2);
  EXPECT_EQ(fixture.events->launches(), 1);
  EXPECT_EQ(fixture.events->cancelled()[Stage::kQueue], 1);
}

TEST(RpcServerTest, ADeviceErrorIsOurFault) {
  RpcFixture fixture;
  fixture.device->FailNext(FakeOp::kLaunch, absl::InternalError("planted"));
  const grpc::Status status = fixture.Call(RpcFixture::Ones());
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INTERNAL);
  EXPECT_TRUE(fixture.Call(RpcFixture::Ones()).ok());
}

TEST(RpcServerTest, ALostDeviceIsUnavailable) {
  RpcFixture fixture;
  fixture.device->Die(absl::InternalError("planted"));
  EXPECT_EQ(fixture.Call(RpcFixture::Ones()).error_code(), grpc::StatusCode::INTERNAL);
  EXPECT_EQ(fixture.Call(RpcFixture::Ones()).error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST(RpcServerTest, RefusesWhileDrainingAndFinishesWhatItAdmitted) {
  RpcFixture fixture;
  fixture.device->Hold(FakeOp::kLaunch);
  std::thread admitted([&] { EXPECT_TRUE(fixture.Call(RpcFixture::Ones()).ok()); });
  fixture.device->AwaitHeld(FakeOp::kLaunch);
  fixture.server->RefuseNewCalls();
  EXPECT_EQ(fixture.Call(RpcFixture::Ones()).error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(fixture.events->rejected()[RejectReason::kDraining], 1);
  EXPECT_FALSE(fixture.server->WaitIdle(Clock::Real()->Now()));
  fixture.device->Release(FakeOp::kLaunch);
  admitted.join();
  EXPECT_TRUE(fixture.server->WaitIdle(kInfiniteFuture));
}

TEST(RpcServerTest, RefusesBeforeItIsReady) {
  RpcFixture fixture;
  RpcOptions options;
  options.listen = {"127.0.0.1:0"};
  auto second =
      RpcServer::Start(options, fixture.engine.get(), Clock::Real(), fixture.events.get());
  ASSERT_TRUE(second.ok());
  auto stub = v1::MatmulService::NewStub(
      grpc::CreateChannel((*second)->addresses()[0], grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  v1::MatmulResponse response;
  EXPECT_EQ(stub->Matmul(&context, RpcFixture::Ones(), &response).error_code(),
            grpc::StatusCode::UNAVAILABLE);
}

TEST(RpcServerTest, BadAddressesAreOneClearStatus) {
  RpcFixture fixture;
  RpcOptions options;
  options.listen = {fixture.server->addresses()[0]};
  EXPECT_EQ(RpcServer::Start(options, fixture.engine.get(), Clock::Real(), fixture.events.get())
                .status()
                .code(),
            StatusCode::kAlreadyExists);
  options.listen = {"nonsense"};
  EXPECT_EQ(RpcServer::Start(options, fixture.engine.get(), Clock::Real(), fixture.events.get())
                .status()
                .code(),
            StatusCode::kInvalidArgument);
}

TEST(RpcServerTest, ManyThreadsWithRandomFailuresEndOnceEach) {
  FakeDeviceOptions device;
  device.failure_probability = 0.02;
  RpcFixture fixture({}, device);
  constexpr int kThreads = 4;
  constexpr int kCalls = 50;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      for (int call = 0; call < kCalls; ++call) {
        const int timeout_ms = (call + i) % 5 == 0 ? 1 : 20000;
        fixture.Call(RpcFixture::Ones(1 + call % 7, 5, 300), nullptr, timeout_ms);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  // A deadline of 1 ms may pass before the call leaves its client: those never started here.
  fixture.server->WaitIdle(kInfiniteFuture);
  const CallTotals totals = fixture.server->totals();
  EXPECT_EQ(totals.admitted, totals.completed + totals.failed);
  EXPECT_GT(totals.completed, kCalls);
  while (fixture.engine->pending_jobs() > 0) std::this_thread::yield();
  AwaitEmptyPool(fixture);
}

}  // namespace
}  // namespace tcgemm
