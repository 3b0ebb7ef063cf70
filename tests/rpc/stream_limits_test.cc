// MatmulStream when something goes wrong on the way: time, clients, the device, too many at once.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "server/rpc/stream_call.h"
#include "tests/rpc/matrix_client.h"
#include "tests/rpc/stream_tester.h"

namespace tcgemm {
namespace {

using grpc::StatusCode;
using std::chrono::milliseconds;
using testing::HasSubstr;
using testing::Pair;
using testing::UnorderedElementsAre;

// Its D has 8 MiB, in panels of at most 2 MiB; its A 400 KB.
StreamShape TallShape() { return {.m = 2099, .n = 1000, .k = 100}; }

// A call that the test drives message by message.
struct OpenCall {
  explicit OpenCall(RpcFixture& fixture, int timeout_ms = 20000) : stub(fixture.Stub()) {
    context.set_deadline(std::chrono::system_clock::now() + milliseconds(timeout_ms));
    stream = stub->MatmulStream(&context);
  }
  // Sends all but the last `kept` messages, and waits for the server's first header.
  void Send(const std::vector<v1::MatmulStreamRequest>& messages, size_t kept = 0) {
    for (size_t i = 0; i + kept < messages.size(); ++i) ASSERT_TRUE(stream->Write(messages[i]));
    v1::MatmulStreamResponse response;
    ASSERT_TRUE(stream->Read(&response));
    EXPECT_TRUE(response.has_header());
  }
  // Bytes of D until the end.
  std::string ReadAll() {
    std::string d;
    for (v1::MatmulStreamResponse response; stream->Read(&response);) d += response.d().data();
    return d;
  }

  std::unique_ptr<v1::MatmulService::Stub> stub;
  grpc::ClientContext context;
  std::unique_ptr<grpc::ClientReaderWriter<v1::MatmulStreamRequest, v1::MatmulStreamResponse>>
      stream;
};

TEST(StreamLimitsTest, AMessageThatDoesNotComeEndsTheCall) {
  RpcOptions options;
  options.receive_timeout = milliseconds(500);
  RpcFixture fixture(options);
  const auto messages = StreamOf(RandomRequest({.m = 40, .n = 50, .k = 60}), 1000);
  // In B, in A, and before the half-close.
  for (const size_t kept : {8, 2, 0}) {
    OpenCall call(fixture);
    call.Send(messages, kept);
    call.ReadAll();
    const grpc::Status status = call.stream->Finish();
    EXPECT_EQ(status.error_code(), StatusCode::DEADLINE_EXCEEDED) << kept;
    EXPECT_THAT(status.error_message(), HasSubstr("--receive-timeout"));
  }
  AwaitNothingHeld(fixture);
  EXPECT_EQ(fixture.events->AwaitEnded(3).at(absl::StatusCode::kDeadlineExceeded), 3);
}

TEST(StreamLimitsTest, AnOperandThatDripsEndsTheCall) {
  RpcOptions options;
  options.receive_timeout = milliseconds(200);
  RpcFixture fixture(options);
  const v1::MatmulRequest request = RandomRequest({.m = 100, .n = 10, .k = 1000});
  const std::string a = request.a().inline_();
  OpenCall call(fixture);
  call.Send(StreamOf(request, 1 << 20), 1);
  // Each message is in time, as the next one goes when the clock has moved on.
  auto next = std::chrono::steady_clock::now();
  for (size_t at = 0; at < a.size(); ++at) {
    if (!call.stream->Write(PanelA(static_cast<int64_t>(at), a.substr(at, 1)))) break;
    next += milliseconds(5);
    while (std::chrono::steady_clock::now() < next) std::this_thread::yield();
  }
  call.ReadAll();
  const grpc::Status status = call.stream->Finish();
  EXPECT_EQ(status.error_code(), StatusCode::DEADLINE_EXCEEDED);
  EXPECT_THAT(status.error_message(), HasSubstr("slower than 4 MiB"));
  AwaitNothingHeld(fixture);
}

TEST(StreamLimitsTest, AClientThatNeverReadsIsCutOffAndHoldsLittle) {
  RpcOptions options;
  options.send_timeout = milliseconds(300);
  RpcFixture fixture(options);
  // 64 MiB of D: more than panels, windows and socket buffers take.
  const v1::MatmulRequest request = RandomRequest({.m = 16000, .n = 1000, .k = 10});
  const auto messages = StreamOf(request, 4000);
  OpenCall call(fixture);
  std::atomic<bool> sent_all{false};
  std::thread sender([&] {
    for (const auto& message : messages) {
      if (!call.stream->Write(message)) return;
    }
    sent_all = true;
    call.stream->WritesDone();
  });
  fixture.events->AwaitEnded(1);
  EXPECT_LE(fixture.engine->host_pool().lease_count(), StreamPlan::kPanelsAtOnce);
  sender.join();
  EXPECT_LT(call.ReadAll().size(), size_t{16000} * 1000 * 4);
  EXPECT_FALSE(call.stream->Finish().ok());
  AwaitNothingHeld(fixture);
  EXPECT_EQ(fixture.events->AwaitEnded(1).at(absl::StatusCode::kDeadlineExceeded), 1);
  EXPECT_TRUE(Stream(fixture, StreamOf(RandomRequest({.m = 4, .n = 5, .k = 6}), 100)).status.ok());
}

// An error of the request is heard even though D is not being read …
TEST(StreamLimitsTest, AnErrorBehindAFullWriteIsHeardWhenDIsReadAfterAll) {
  RpcFixture fixture;
  const v1::MatmulRequest request = RandomRequest({.m = 16000, .n = 1000, .k = 10});
  auto messages = StreamOf(request, 4000);
  for (size_t i = 60; i < messages.size(); ++i) messages[i].mutable_a()->set_offset(1);
  OpenCall call(fixture);
  std::thread sender([&] {
    for (const auto& message : messages) {
      if (!call.stream->Write(message)) return;
    }
  });
  call.ReadAll();
  sender.join();
  const grpc::Status status = call.stream->Finish();
  EXPECT_EQ(status.error_code(), StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("a.offset is 1"));
  AwaitNothingHeld(fixture);
}

// … and ends the call when it is never read.
TEST(StreamLimitsTest, AnErrorBehindAWriteThatNobodyReadsEndsInTime) {
  RpcOptions options;
  options.send_timeout = milliseconds(300);
  RpcFixture fixture(options);
  const v1::MatmulRequest request = RandomRequest({.m = 16000, .n = 1000, .k = 10});
  auto messages = StreamOf(request, 4000);
  const size_t bad = 12;  // behind some panels, before the last that may be held
  messages.resize(bad + 1);
  messages[bad].mutable_a()->set_offset(1);
  OpenCall call(fixture);
  for (const auto& message : messages) {
    if (!call.stream->Write(message)) break;
  }
  EXPECT_EQ(fixture.events->AwaitEnded(1).at(absl::StatusCode::kInvalidArgument), 1);
  AwaitNothingHeld(fixture);
  call.ReadAll();
  EXPECT_FALSE(call.stream->Finish().ok());
}

TEST(StreamLimitsTest, ACancelledCallGivesEverythingBack) {
  RpcFixture fixture;
  const auto messages = StreamOf(RandomRequest(TallShape()), 50000);
  for (const size_t kept : {8, 3, 0}) {
    OpenCall call(fixture);
    call.Send(messages, kept);
    call.context.TryCancel();
    EXPECT_EQ(call.stream->Finish().error_code(), StatusCode::CANCELLED);
    AwaitNothingHeld(fixture);
  }
  // While a panel is on the device.
  fixture.device->Hold(FakeOp::kLaunch);
  {
    OpenCall call(fixture);
    call.Send(messages, 1);
    fixture.device->AwaitHeld(FakeOp::kLaunch);
    call.context.TryCancel();
    EXPECT_EQ(call.stream->Finish().error_code(), StatusCode::CANCELLED);
  }
  fixture.device->Release(FakeOp::kLaunch);
  AwaitNothingHeld(fixture);
  EXPECT_THAT(fixture.events->AwaitEnded(4),
              UnorderedElementsAre(Pair(absl::StatusCode::kCancelled, 4)));
}

TEST(StreamLimitsTest, TheDeadlineEndsIt) {
  RpcFixture fixture;
  const auto messages = StreamOf(RandomRequest(TallShape()), 50000);
  fixture.device->Hold(FakeOp::kLaunch);
  const Streamed streamed = Stream(fixture, messages, {.timeout_ms = 300});
  EXPECT_EQ(streamed.status.error_code(), StatusCode::DEADLINE_EXCEEDED);
  fixture.events->AwaitEnded(1);
  fixture.device->Release(FakeOp::kLaunch);
  AwaitNothingHeld(fixture);
  EXPECT_EQ(fixture.events->AwaitEnded(1).at(absl::StatusCode::kDeadlineExceeded), 1);
}

TEST(StreamLimitsTest, AFailingDeviceFailsTheCall) {
  RpcFixture fixture;
  const v1::MatmulRequest request = RandomRequest(TallShape());
  const auto messages = StreamOf(request, 50000);
  for (const FakeOp op : {FakeOp::kLaunch, FakeOp::kCopyIn, FakeOp::kCopyOut}) {
    fixture.device->FailNext(op, absl::InternalError("told to fail"));
    const Streamed streamed = Stream(fixture, messages);
    EXPECT_EQ(streamed.status.error_code(), StatusCode::INTERNAL);
    EXPECT_THAT(streamed.status.error_message(), HasSubstr("told to fail"));
    AwaitNothingHeld(fixture);
  }
  v1::MatmulResponse unary;
  ASSERT_TRUE(fixture.Call(request, &unary).ok());
  const Streamed again = Stream(fixture, messages);
  ASSERT_TRUE(again.status.ok());
  EXPECT_TRUE(again.d == unary.d());
}

TEST(StreamLimitsTest, AdmittedStreamsFinishWhileNewOnesAreRefused) {
  RpcFixture fixture;
  const v1::MatmulRequest request = RandomRequest(TallShape());
  const auto messages = StreamOf(request, 50000);
  v1::MatmulResponse unary;
  ASSERT_TRUE(fixture.Call(request, &unary).ok());
  OpenCall call(fixture);
  call.Send(messages, 4);
  fixture.server->RefuseNewCalls();
  EXPECT_EQ(Stream(fixture, messages).status.error_code(), StatusCode::UNAVAILABLE);
  EXPECT_FALSE(fixture.server->WaitIdle(std::chrono::steady_clock::now() + milliseconds(50)));
  std::thread sender([&] {
    for (size_t i = messages.size() - 4; i < messages.size(); ++i) call.stream->Write(messages[i]);
    call.stream->WritesDone();
  });
  EXPECT_TRUE(call.ReadAll() == unary.d());
  sender.join();
  EXPECT_TRUE(call.stream->Finish().ok());
  EXPECT_TRUE(fixture.server->WaitIdle(std::chrono::steady_clock::now() + std::chrono::seconds(9)));
  EXPECT_EQ(fixture.server->totals().failed, 0);
}

// The pool has 16 MiB, streams may have 8 of them: two at a time.
TEST(StreamLimitsTest, StreamsBeyondTheBudgetAreRefusedAndTheOthersEnd) {
  RpcFixture fixture;
  const v1::MatmulRequest request = RandomRequest(TallShape());
  v1::MatmulResponse unary;
  ASSERT_TRUE(fixture.Call(request, &unary).ok());
  const auto messages = StreamOf(request, 50000);
  OpenCall first(fixture);
  first.Send(messages, 1);
  const Streamed refused = Stream(fixture, messages);
  EXPECT_EQ(refused.status.error_code(), StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(refused.status.error_message(), HasSubstr("half of --pinned-bytes"));
  EXPECT_FALSE(refused.status.error_details().empty()) << "RetryInfo";
  EXPECT_TRUE(fixture.Call(request).ok()) << "Matmul has the other half";
  std::thread sender([&] {
    first.stream->Write(messages.back());
    first.stream->WritesDone();
  });
  EXPECT_TRUE(first.ReadAll() == unary.d());
  sender.join();
  EXPECT_TRUE(first.stream->Finish().ok());
  EXPECT_TRUE(Stream(fixture, messages).status.ok());
}

// A D of few panels is in gRPC's hands as a whole, and as much of the pool is taken as before.
TEST(StreamLimitsTest, AStreamWhoseDNobodyReadsKeepsItsPartOfTheBudget) {
  RpcFixture fixture;
  const v1::MatmulRequest request = RandomRequest({.m = 1050, .n = 1000, .k = 100});
  v1::MatmulResponse unary;
  ASSERT_TRUE(fixture.Call(request, &unary).ok());
  const auto messages = StreamOf(request, 50000);
  OpenCall unread(fixture);
  unread.Send(messages);
  unread.stream->WritesDone();
  // Each gives the first one more time to be computed.
  for (int i = 0; i < 30; ++i) {
    const Streamed refused = Stream(fixture, messages);
    ASSERT_EQ(refused.status.error_code(), StatusCode::RESOURCE_EXHAUSTED) << i;
    ASSERT_TRUE(fixture.Call(request).ok()) << "Matmul has the other half";
  }
  EXPECT_TRUE(unread.ReadAll() == unary.d());
  EXPECT_TRUE(unread.stream->Finish().ok());
  EXPECT_TRUE(Stream(fixture, messages).status.ok()) << "who hears of the end finds room";
}

// Streams, products in one message and failures, all at once: everything ends, nothing is left, and
// what ends well is right.
TEST(StreamLimitsTest, ManyAtOnceWithADeviceThatFailsNowAndThen) {
  FakeDeviceOptions device;
  device.delay = [](double random) {
    const auto end = std::chrono::steady_clock::now() +
                     std::chrono::microseconds(static_cast<int>(random * 200));
    while (std::chrono::steady_clock::now() < end) std::this_thread::yield();
  };
  RpcFixture fixture({}, device);
  const v1::MatmulRequest request = RandomRequest({.m = 700, .n = 300, .k = 100});
  v1::MatmulRequest transposed = RandomRequest({.m = 700, .n = 300, .k = 100, .transpose_a = true});
  v1::MatmulResponse unary;
  v1::MatmulResponse unary_transposed;
  ASSERT_TRUE(fixture.Call(request, &unary).ok());
  ASSERT_TRUE(fixture.Call(transposed, &unary_transposed).ok());
  std::atomic<int> right{0};
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 6; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 8; ++i) {
        if (t == 0) fixture.device->FailNext(FakeOp::kLaunch, absl::InternalError("now and then"));
        const bool flip = (i + t) % 2 == 0;
        const Streamed streamed =
            Stream(fixture, StreamOf(flip ? transposed : request, 1000 + 7777 * t));
        if (streamed.status.ok()) {
          streamed.d == (flip ? unary_transposed : unary).d() ? ++right : ++wrong;
        } else if (streamed.status.error_code() != StatusCode::INTERNAL &&
                   streamed.status.error_code() != StatusCode::RESOURCE_EXHAUSTED) {
          ++wrong;
        }
        if (t == 5) fixture.Call(request);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(right, 5);
  AwaitNothingHeld(fixture);
}

}  // namespace
}  // namespace tcgemm
