// Clients that stall, in either direction, and the budgets that they may hold meanwhile.
#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/rpc/rpc_fixture.h"

namespace tcgemm {
namespace {

using absl::StatusCode;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

// A Matmul call whose client does one step at a time, or none.
class SlowCall {
 public:
  explicit SlowCall(RpcFixture& fixture)
      : stub_(grpc::CreateCustomChannel(fixture.server->addresses()[0],
                                        grpc::InsecureChannelCredentials(), Arguments())),
        stream_(stub_.PrepareCall(&context_, "/tcgemm.v1.MatmulService/Matmul", &queue_)) {
    stream_->StartCall(nullptr);
    Step();
  }
  ~SlowCall() {
    context_.TryCancel();
    if (!finished_) Finish();
  }

  void Write(const v1::MatmulRequest& request) {
    const grpc::Slice slice(request.SerializeAsString());
    stream_->Write(grpc::ByteBuffer(&slice, 1), nullptr);
    Step();
  }
  void WritesDone() {
    stream_->WritesDone(nullptr);
    Step();
  }
  void Cancel() { context_.TryCancel(); }
  grpc::Status Finish() {
    grpc::Status status;
    stream_->Finish(&status, nullptr);
    Step();
    finished_ = true;
    return status;
  }

 private:
  static grpc::ChannelArguments Arguments() {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    // A window that does not grow: what is not read stays with the server.
    arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
    arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 65535);
    return arguments;
  }
  void Step() {
    void* tag;
    bool ok;
    queue_.Next(&tag, &ok);
  }

  grpc::CompletionQueue queue_;
  grpc::ClientContext context_;
  grpc::GenericStub stub_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> stream_;
  bool finished_ = false;
};

void AwaitAdmitted(const RpcFixture& fixture, int64_t calls) {
  while (fixture.server->totals().admitted < calls) std::this_thread::yield();
}

// More than half of the fixture's pool: two do not fit.
v1::MatmulRequest Wide() { return RpcFixture::Ones(1500, 1500, 1); }

TEST(RpcLimitsTest, APayloadThatNeverComesEndsTheCall) {
  RpcOptions options;
  options.receive_timeout = std::chrono::milliseconds(50);
  RpcFixture fixture(options);
  SlowCall call(fixture);
  const grpc::Status status = call.Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_NE(status.error_message().find("--receive-timeout"), std::string::npos);
  EXPECT_THAT(fixture.events->AwaitEnded(1),
              UnorderedElementsAre(Pair(StatusCode::kDeadlineExceeded, 1)));
  EXPECT_EQ(fixture.events->cancelled()[Stage::kReceive], 1);
}

TEST(RpcLimitsTest, ACallWithoutAMessageIsABadRequest) {
  RpcFixture fixture;
  SlowCall call(fixture);
  call.WritesDone();
  EXPECT_EQ(call.Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(fixture.events->AwaitEnded(1),
              UnorderedElementsAre(Pair(StatusCode::kInvalidArgument, 1)));
}

TEST(RpcLimitsTest, WhoWaitsTooLongForAShareIsToldToRetry) {
  RpcOptions options;
  options.receive_bytes = options.max_message_bytes;  // one share
  options.admission_wait = std::chrono::milliseconds(20);
  RpcFixture fixture(options);
  {
    SlowCall stalled(fixture);
    AwaitAdmitted(fixture, 1);
    const grpc::Status status = fixture.Call(RpcFixture::Ones());
    EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
    EXPECT_FALSE(status.error_details().empty());
    EXPECT_EQ(fixture.events->rejected()[RejectReason::kMemory], 1);
  }
  fixture.events->AwaitEnded(2);
  EXPECT_TRUE(fixture.Call(RpcFixture::Ones()).ok()) << "the share came back";
  fixture.server->WaitIdle(kInfiniteFuture);
  const CallTotals totals = fixture.server->totals();
  EXPECT_EQ(totals.started, 3);
  EXPECT_EQ(totals.admitted, 2) << "who was refused never sent a payload";
  EXPECT_EQ(totals.failed, 1);
}

TEST(RpcLimitsTest, AReaderThatNeverReadsIsCutOff) {
  RpcOptions options;
  options.send_timeout = std::chrono::milliseconds(100);
  RpcFixture fixture(options);
  SlowCall call(fixture);
  call.Write(Wide());
  EXPECT_THAT(fixture.events->AwaitEnded(1),
              UnorderedElementsAre(Pair(StatusCode::kDeadlineExceeded, 1)));
  // The slab is back while the connection is still open.
  AwaitEmptyPool(fixture);
  EXPECT_EQ(fixture.events->cancelled()[Stage::kSend], 1);
  EXPECT_TRUE(fixture.Call(Wide()).ok());
}

// A result that fills most of the memory, and that nobody reads, gives way to those who wait.
TEST(RpcLimitsTest, AReaderThatNeverReadsGivesWayToOthers) {
  RpcOptions options;
  options.send_timeout = std::chrono::hours(1);
  options.contended_timeout = std::chrono::milliseconds(100);
  std::string folder = ::testing::TempDir() + "/tcgemm-limits-XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  options.listen = {"127.0.0.1:0", "unix:" + folder + "/s"};
  {
    RpcFixture fixture(options);
    SlowCall call(fixture);
    call.Write(Wide());
    while (fixture.events->launches() < 1) std::this_thread::yield();
    // Another caller: a uid, not the anonymous one.
    grpc::ClientContext context;
    v1::MatmulResponse response;
    const grpc::Status status = fixture.Stub(1)->Matmul(&context, Wide(), &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(fixture.events->cancelled()[Stage::kSend], 1);
  }
  rmdir(folder.c_str());
}

// Many results, each of them small, that one caller does not read.
TEST(RpcLimitsTest, WhoNeverReadsLeavesMemoryToOthers) {
  std::string folder = ::testing::TempDir() + "/tcgemm-limits-XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  RpcOptions options;
  options.listen = {"127.0.0.1:0", "unix:" + folder + "/s"};
  {
    RpcFixture fixture(options);
    const size_t total = fixture.engine->host_pool().total_bytes();
    const v1::MatmulRequest third = RpcFixture::Ones(1100, 1100, 1);  // of the pool
    std::vector<std::unique_ptr<SlowCall>> unread;
    for (int i = 0; i < 6; ++i) {
      unread.push_back(std::make_unique<SlowCall>(fixture));
      unread.back()->Write(third);
    }
    // One is not read; two wait for memory, and the rest for their peer's half of the receivers.
    AwaitAdmitted(fixture, 3);
    while (fixture.events->launches() < 1) std::this_thread::yield();
    for (int i = 0; i < 3; ++i) {
      grpc::ClientContext context;
      context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
      v1::MatmulResponse response;
      EXPECT_TRUE(fixture.Stub(1)->Matmul(&context, third, &response).ok());
    }
    EXPECT_GT(fixture.engine->host_pool().used_bytes(), 0u);
    while (fixture.engine->host_pool().used_bytes() > total / 2) std::this_thread::yield();
  }
  rmdir(folder.c_str());
}

TEST(RpcLimitsTest, AServerEndsWhileAReaderNeverReads) {
  RpcFixture fixture;
  SlowCall call(fixture);
  call.Write(Wide());
  while (fixture.events->launches() < 1) std::this_thread::yield();
  fixture.server.reset();
  EXPECT_EQ(fixture.engine->host_pool().used_bytes(), 0u);
}

TEST(RpcLimitsTest, AnAdmittedCallWaitsForMemory) {
  RpcFixture fixture;
  fixture.device->Hold(FakeOp::kLaunch);
  std::thread first([&] { EXPECT_TRUE(fixture.Call(Wide()).ok()); });
  fixture.device->AwaitHeld(FakeOp::kLaunch);
  // Not refused: it waits until its deadline. On a busy machine a short one passes before that.
  for (int timeout_ms = 100; timeout_ms < 60'000 && fixture.events->cancelled()[Stage::kDecode] < 1;
       timeout_ms *= 2) {
    EXPECT_EQ(fixture.Call(Wide(), nullptr, timeout_ms).error_code(),
              grpc::StatusCode::DEADLINE_EXCEEDED);
    while (fixture.server->totals().started >
           fixture.server->totals().completed + fixture.server->totals().failed + 1) {
      std::this_thread::yield();
    }
  }
  EXPECT_EQ(fixture.events->cancelled()[Stage::kDecode], 1);
  const int64_t admitted = fixture.server->totals().admitted;
  std::thread second([&] {
    const grpc::Status status = fixture.Call(Wide());
    EXPECT_TRUE(status.ok()) << status.error_message();
  });
  AwaitAdmitted(fixture, admitted + 1);
  fixture.device->Release(FakeOp::kLaunch);
  first.join();
  second.join();
  AwaitEmptyPool(fixture);
}

TEST(RpcLimitsTest, ACancelledPayloadGivesItsShareBack) {
  RpcOptions options;
  options.receive_bytes = options.max_message_bytes;
  options.admission_wait = std::chrono::seconds(20);
  RpcFixture fixture(options);
  SlowCall stalled(fixture);
  AwaitAdmitted(fixture, 1);
  std::thread waiting([&] { EXPECT_TRUE(fixture.Call(RpcFixture::Ones()).ok()); });
  stalled.Cancel();
  waiting.join();
  EXPECT_THAT(fixture.events->AwaitEnded(2),
              UnorderedElementsAre(Pair(StatusCode::kOk, 1), Pair(StatusCode::kCancelled, 1)));
}

}  // namespace
}  // namespace tcgemm
