// MatmulStream through a real server: what it answers, and what it refuses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "server/rpc/stream_call.h"
#include "tests/rpc/matrix_client.h"
#include "tests/rpc/stream_tester.h"

namespace tcgemm {
namespace {

using grpc::StatusCode;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Pair;
using testing::UnorderedElementsAre;

FakeDeviceOptions Device(bool unified) {
  FakeDeviceOptions options;
  options.unified_memory = unified;
  return options;
}

// The D of one message, which the stream must give too.
std::string UnaryD(RpcFixture& fixture, const v1::MatmulRequest& request) {
  v1::MatmulResponse response;
  const grpc::Status status = fixture.Call(request, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return response.d();
}

TEST(StreamServiceTest, TheBitsOfOneMessageInEveryLayoutAndCut) {
  for (const bool unified : {false, true}) {
    RpcFixture fixture({}, Device(unified));
    for (const StreamShape& shape :
         {StreamShape{.m = 1, .n = 1, .k = 1}, StreamShape{.m = 1, .n = 77, .k = 300},
          StreamShape{.m = 65, .n = 33, .k = 7}, StreamShape{.m = 130, .n = 1, .k = 129}}) {
      for (int layout = 0; layout < 8; ++layout) {
        StreamShape one = shape;
        one.transpose_a = (layout & 1) != 0;
        one.transpose_b = (layout & 2) != 0;
        one.output = (layout & 4) != 0 ? v1::FP32 : v1::BF16;
        const v1::MatmulRequest request = RandomRequest(one);
        const std::string expected = UnaryD(fixture, request);
        for (const size_t chunk : {3, 257, 1 << 22}) {
          if (shape.m * shape.k / static_cast<int64_t>(chunk) > 1000) continue;
          const Streamed streamed = Stream(fixture, StreamOf(request, chunk));
          ASSERT_TRUE(streamed.status.ok()) << streamed.status.error_message();
          ASSERT_EQ(streamed.d, expected) << "layout " << layout << " chunk " << chunk;
        }
      }
    }
    AwaitNothingHeld(fixture);
  }
}

TEST(StreamServiceTest, ManyPanelsInOrder) {
  for (const bool unified : {false, true}) {
    for (const bool transpose_a : {false, true}) {
      RpcFixture fixture({}, Device(unified));
      // Rows of 4 KB of D: 8 MiB in all, where panels have at most 2.
      StreamShape shape{.m = 2099, .n = 1000, .k = 33, .transpose_a = transpose_a};
      const v1::MatmulRequest request = RandomRequest(shape);
      const std::string expected = UnaryD(fixture, request);
      const Streamed streamed = Stream(fixture, StreamOf(request, 12345));
      ASSERT_TRUE(streamed.status.ok()) << streamed.status.error_message();
      EXPECT_TRUE(streamed.d == expected);
      EXPECT_GE(streamed.panels, 4);
      AwaitNothingHeld(fixture);
    }
  }
}

TEST(StreamServiceTest, HeadersTellTheResultFirstAndTheTimesLast) {
  RpcFixture fixture;
  const v1::MatmulRequest request = RandomRequest({.m = 40, .n = 50, .k = 60});
  const Streamed streamed = Stream(fixture, StreamOf(request, 1000));
  ASSERT_TRUE(streamed.status.ok()) << streamed.status.error_message();
  EXPECT_EQ(streamed.first.rows(), 40);
  EXPECT_EQ(streamed.first.cols(), 50);
  EXPECT_EQ(streamed.first.dtype(), v1::FP32);
  EXPECT_EQ(streamed.first.kernel(), "");
  EXPECT_EQ(streamed.last.rows(), 40);
  EXPECT_NE(streamed.last.kernel(), "");
  EXPECT_GT(streamed.last.timings().receive_ns(), 0);
  EXPECT_GT(streamed.last.timings().kernel_ns(), 0);
  EXPECT_GT(streamed.last.tflops(), 0);
  EXPECT_EQ(streamed.last.handle(), "");
}

TEST(StreamServiceTest, OperandsAndResultsMayBeResident) {
  for (const bool unified : {false, true}) {
    RpcFixture fixture({}, Device(unified));
    const v1::MatmulRequest request =
        RandomRequest({.m = 90, .n = 80, .k = 70, .output = v1::BF16});
    const std::string expected = UnaryD(fixture, request);
    for (const auto& [name, operand] : {std::pair("a", request.a()), std::pair("b", request.b())}) {
      ASSERT_TRUE(Upload(fixture, {UploadHeader(name, operand.rows(), operand.cols()),
                                   UploadRange(0, operand.inline_())})
                      .status.ok());
    }
    for (int mix = 0; mix < 8; ++mix) {
      v1::MatmulRequest mixed = request;
      if ((mix & 1) != 0) mixed.mutable_a()->Clear(), mixed.mutable_a()->set_handle("a");
      if ((mix & 2) != 0) mixed.mutable_b()->Clear(), mixed.mutable_b()->set_handle("b");
      if ((mix & 4) != 0) mixed.mutable_output()->set_handle("d");
      const Streamed streamed = Stream(fixture, StreamOf(mixed, 999));
      ASSERT_TRUE(streamed.status.ok()) << mix << ": " << streamed.status.error_message();
      EXPECT_EQ(streamed.first.rows(), 90);
      if ((mix & 4) == 0) {
        EXPECT_EQ(streamed.d, expected) << mix;
        continue;
      }
      EXPECT_EQ(streamed.panels, 0);
      EXPECT_EQ(streamed.last.handle(), "d");
      EXPECT_EQ(Download(fixture, "d").data, expected) << mix;
      EXPECT_TRUE(Delete(fixture, "d").ok());
    }
  }
}

TEST(StreamServiceTest, EpiloguesOfResidentMatrices) {
  for (const bool unified : {false, true}) {
    RpcFixture fixture({}, Device(unified));
    // Two panels.
    const v1::MatmulRequest plain =
        RandomRequest({.m = 400, .n = 64, .k = 4000, .output = v1::BF16});
    const v1::MatmulRequest added = RandomRequest({.m = 400, .n = 1, .k = 64}, 7);
    ASSERT_TRUE(Upload(fixture, {UploadHeader("c", 400, 64), UploadRange(0, added.a().inline_())})
                    .status.ok());
    for (const bool column : {false, true}) {
      const int64_t length = column ? 400 : 64;
      ASSERT_TRUE(Upload(fixture, {UploadHeader("bias", column ? length : 1, column ? 1 : length),
                                   UploadRange(0, added.a().inline_().substr(0, 2 * length))})
                      .status.ok());
      v1::MatmulRequest request = plain;
      request.set_alpha(0.5f);
      request.set_beta(-2.0f);
      request.mutable_c()->set_handle("c");
      request.mutable_bias()->set_handle("bias");
      request.set_activation(v1::SILU);
      const std::string expected = UnaryD(fixture, request);
      EXPECT_NE(expected, UnaryD(fixture, plain));
      const Streamed streamed = Stream(fixture, StreamOf(request, 12345));
      ASSERT_TRUE(streamed.status.ok()) << streamed.status.error_message();
      EXPECT_TRUE(streamed.d == expected) << "unified " << unified << " column " << column;
      EXPECT_GE(streamed.panels, 2);
      EXPECT_TRUE(Delete(fixture, "bias").ok());
    }
    EXPECT_TRUE(Delete(fixture, "c").ok());
    AwaitNothingHeld(fixture);
  }
}

// What a client may do wrong, and the words for it.
struct BadStream {
  std::vector<v1::MatmulStreamRequest> messages;
  StatusCode code = StatusCode::INVALID_ARGUMENT;
  std::string words;
};

std::vector<BadStream> BadOrders(const v1::MatmulRequest& request) {
  const std::string& a = request.a().inline_();
  const std::string& b = request.b().inline_();
  const v1::MatmulStreamRequest header = StreamHeader(request);
  const v1::MatmulStreamRequest all_a = PanelA(0, a);
  const v1::MatmulStreamRequest all_b = PanelB(0, b);
  v1::MatmulStreamRequest empty_a;
  empty_a.mutable_a();
  return {
      {{}, StatusCode::INVALID_ARGUMENT, "ended without a request message"},
      {{v1::MatmulStreamRequest()}, StatusCode::INVALID_ARGUMENT, "neither header nor panel"},
      {{all_b}, StatusCode::INVALID_ARGUMENT, "a panel came before the header"},
      {{header, header}, StatusCode::INVALID_ARGUMENT, "a second header"},
      {{header, all_b, all_a, header}, StatusCode::INVALID_ARGUMENT, "a second header"},
      {{header}, StatusCode::INVALID_ARGUMENT, "ended after 0 of 60 bytes of b"},
      {{header, all_b}, StatusCode::INVALID_ARGUMENT, "ended after 0 of 48 bytes of a"},
      {{header, all_b, PanelA(0, a.substr(0, 7))},
       StatusCode::INVALID_ARGUMENT,
       "ended after 7 of 48 bytes of a"},
      {{header, all_a}, StatusCode::INVALID_ARGUMENT, "after 0 of 60 bytes of b: b comes first"},
      {{header, all_b, empty_a}, StatusCode::INVALID_ARGUMENT, "a.data is empty"},
      {{header, PanelB(2, b.substr(2))}, StatusCode::INVALID_ARGUMENT, "b.offset is 2"},
      {{header, all_b, PanelA(0, a.substr(0, 10)), PanelA(0, a.substr(0, 10))},
       StatusCode::INVALID_ARGUMENT,
       "a.offset is 0, must be the next byte's: 10"},
      {{header, PanelB(0, b + "x")}, StatusCode::INVALID_ARGUMENT, "but b has 60 in all"},
      {{header, all_b, all_a, PanelA(48, "x")},
       StatusCode::INVALID_ARGUMENT,
       "but a has 48 in all"},
      {{header, all_b, PanelB(60, "x")}, StatusCode::INVALID_ARGUMENT, "but b has 60 in all"},
      {{header, PanelB(0, std::string((4 << 20) + 1, 'x'))},
       StatusCode::RESOURCE_EXHAUSTED,
       "limit 4194304"},
  };
}

TEST(StreamServiceTest, SaysWhatIsOutOfOrder) {
  RpcFixture fixture;
  const v1::MatmulRequest request = RandomRequest({.m = 4, .n = 5, .k = 6});
  const std::vector<BadStream> cases = BadOrders(request);
  for (const BadStream& bad : cases) {
    const Streamed streamed = Stream(fixture, bad.messages);
    EXPECT_EQ(streamed.status.error_code(), bad.code) << bad.words;
    EXPECT_THAT(streamed.status.error_message(), HasSubstr(bad.words));
  }
  AwaitNothingHeld(fixture);
  const auto codes = fixture.events->AwaitEnded(static_cast<int>(cases.size()));
  EXPECT_EQ(codes.at(absl::StatusCode::kResourceExhausted), 1);
  EXPECT_EQ(codes.at(absl::StatusCode::kInvalidArgument), static_cast<int>(cases.size()) - 1);
  EXPECT_THAT(fixture.events->rejected(), UnorderedElementsAre(Pair(RejectReason::kMessage, 1)));
}

TEST(StreamServiceTest, SaysWhatIsWrongWithAHeader) {
  RpcFixture fixture;
  ASSERT_TRUE(
      Upload(fixture, {UploadHeader("w", 6, 5), UploadRange(0, OnesData(6, 5))}).status.ok());
  const v1::MatmulRequest request = RandomRequest({.m = 4, .n = 5, .k = 6});
  const auto refused = [&](const std::function<void(v1::MatmulRequest&)>& change, StatusCode code,
                           const std::string& words) {
    v1::MatmulStreamRequest header = StreamHeader(request);
    change(*header.mutable_header());
    const Streamed streamed = Stream(fixture, {header});
    EXPECT_EQ(streamed.status.error_code(), code) << words;
    EXPECT_THAT(streamed.status.error_message(), HasSubstr(words));
    EXPECT_EQ(streamed.first.rows(), 0) << "no header before the header is good";
  };
  refused([](auto& r) { r.mutable_a()->set_inline_("xy"); }, StatusCode::INVALID_ARGUMENT,
          "a.inline is set");
  refused([](auto& r) { r.mutable_b()->set_ld(64); }, StatusCode::INVALID_ARGUMENT, "b.ld is 64");
  refused([](auto& r) { r.mutable_a()->set_rows(-1); }, StatusCode::INVALID_ARGUMENT, "a.rows");
  refused([](auto& r) { r.mutable_b()->set_handle("gone"); }, StatusCode::NOT_FOUND, "b.handle");
  refused([](auto& r) { r.mutable_output()->set_handle("w"); }, StatusCode::ALREADY_EXISTS,
          "output.handle");
  refused([](auto& r) { r.set_priority(3); }, StatusCode::UNIMPLEMENTED, "priority");
  refused([](auto& r) { r.mutable_bias()->set_inline_("xy"); }, StatusCode::INVALID_ARGUMENT,
          "bias has no handle");
  // A panel of an operand that is there already.
  v1::MatmulStreamRequest header = StreamHeader(request);
  header.mutable_header()->mutable_b()->Clear();
  header.mutable_header()->mutable_b()->set_handle("w");
  const Streamed extra = Stream(fixture, {header, PanelB(0, "xy")});
  EXPECT_THAT(extra.status.error_message(), HasSubstr("header.b names a resident matrix"));
}

TEST(StreamServiceTest, AWrongCrcFailsItsCallAlone) {
  RpcFixture fixture;
  const v1::MatmulRequest request = RandomRequest({.m = 64, .n = 50, .k = 60});
  const std::string expected = UnaryD(fixture, request);
  for (const size_t spoilt : {1, 4, 20}) {
    auto messages = StreamOf(request, 300);
    ASSERT_GT(messages.size(), 25u);
    v1::Panel& panel =
        messages[spoilt].has_a() ? *messages[spoilt].mutable_a() : *messages[spoilt].mutable_b();
    panel.set_crc32c(panel.crc32c() ^ 1);
    const Streamed streamed = Stream(fixture, messages);
    EXPECT_EQ(streamed.status.error_code(), StatusCode::DATA_LOSS);
    EXPECT_THAT(streamed.status.error_message(), HasSubstr(".crc32c is"));
    panel.clear_crc32c();  // not checked
    EXPECT_EQ(Stream(fixture, messages).d, expected);
  }
  AwaitNothingHeld(fixture);
}

TEST(StreamServiceTest, WithoutRoomForBItIsRefusedBeforeAnyByte) {
  RpcFixture fixture;  // 1 MiB stays
  const v1::MatmulRequest large = RandomRequest({.m = 2, .n = 1000, .k = 600});
  const Streamed never = Stream(fixture, {StreamHeader(large)});
  EXPECT_EQ(never.status.error_code(), StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(never.status.error_message(), HasSubstr("1048576 resident (--resident-bytes)"));
  EXPECT_TRUE(never.status.error_details().empty()) << "a retry cannot help";
  ASSERT_TRUE(Upload(fixture, {UploadHeader("unfinished", 512, 960)}).status.ok());
  const v1::MatmulRequest small = RandomRequest({.m = 2, .n = 512, .k = 512});
  const Streamed full = Stream(fixture, {StreamHeader(small)});
  EXPECT_EQ(full.status.error_code(), StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(full.status.error_message(), HasSubstr("b: the matrix needs 524288 bytes"));
  EXPECT_FALSE(full.status.error_details().empty()) << "RetryInfo";
  ASSERT_TRUE(Delete(fixture, "unfinished").ok());
  EXPECT_TRUE(Stream(fixture, StreamOf(small, 1 << 20)).status.ok());
  // An unused matrix makes room, as for any other.
  ASSERT_TRUE(Upload(fixture, {UploadHeader("old", 512, 512), UploadRange(0, OnesData(512, 512))})
                  .status.ok());
  v1::MatmulRequest two = RandomRequest({.m = 512, .n = 512, .k = 512, .transpose_a = true});
  EXPECT_TRUE(Stream(fixture, StreamOf(two, 1 << 20)).status.ok());
  EXPECT_THAT(List(fixture), IsEmpty());
  AwaitNothingHeld(fixture);
}

TEST(StreamServiceTest, TheResultIsGoneWhenTheCallFails) {
  RpcFixture fixture;
  v1::MatmulRequest request = RandomRequest({.m = 200, .n = 50, .k = 60});
  request.mutable_output()->set_handle("d");
  auto messages = StreamOf(request, 5000);
  messages.pop_back();
  const Streamed cut = Stream(fixture, messages);
  EXPECT_EQ(cut.status.error_code(), StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(Download(fixture, "d").status.error_code(), StatusCode::NOT_FOUND);
  AwaitNothingHeld(fixture);
  EXPECT_TRUE(Stream(fixture, StreamOf(request, 5000)).status.ok()) << "the name is free";
  EXPECT_TRUE(Delete(fixture, "d").ok());
  AwaitNothingHeld(fixture);
}

TEST(StreamServiceTest, RefusedSizesNameThisCall) {
  RpcOptions options;
  options.max_message_bytes = 10000;
  RpcFixture fixture(options);
  const v1::MatmulRequest large = RandomRequest({.m = 100, .n = 5, .k = 100});
  const grpc::Status message = fixture.Call(large);
  EXPECT_EQ(message.error_code(), StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(message.error_message(), HasSubstr("MatmulStream"));
  EXPECT_TRUE(Stream(fixture, StreamOf(large, 5000)).status.ok());
  RequestLayout layout;
  layout.d = {.rows = 1 << 16, .cols = 1 << 15, .ld = 1 << 15, .dtype = DType::kBf16};
  EXPECT_THAT(std::string(CheckResponseSize(layout).message()), HasSubstr("MatmulStream"));
  layout.d.rows = 1 << 14;
  EXPECT_TRUE(CheckResponseSize(layout).ok());
  layout.d.rows = 1 << 17;
  layout.d_is_resident = true;
  EXPECT_TRUE(CheckResponseSize(layout).ok());
}

}  // namespace
}  // namespace tcgemm
