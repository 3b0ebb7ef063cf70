// HoldRegion, and products in shared memory, through a real server.
#include "server/rpc/region_call.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "server/rpc/region_wire.h"
#include "tests/rpc/region_client.h"
#include "tests/rpc/rpc_fixture.h"

namespace tcgemm {
namespace {

using grpc::StatusCode;
using testing::HasSubstr;

constexpr int64_t kPage = 4096;

// A client's region: the open call, and the memory.
class Held {
 public:
  explicit Held(v1::MatmulService::Stub& stub, int64_t bytes = kPage)
      : stream_(stub.HoldRegion(&context_)) {
    v1::HoldRegionRequest request;
    request.set_bytes(bytes);
    stream_->Write(request);
    opened_ = stream_->Read(&response_);
  }
  ~Held() {
    if (data_ != nullptr) munmap(data_, static_cast<size_t>(response_.bytes()));
    context_.TryCancel();
    if (!finished_) Finish();
  }
  void Map() {
    const FetchedFd fetched = Fetch(ConnectTo(response_.side_socket()), response_.token());
    ASSERT_GE(fetched.fd, 0) << fetched.text;
    data_ = static_cast<char*>(mmap(nullptr, static_cast<size_t>(response_.bytes()),
                                    PROT_READ | PROT_WRITE, MAP_SHARED, fetched.fd, 0));
    close(fetched.fd);
  }
  grpc::Status Finish() {
    finished_ = true;
    return stream_->Finish();
  }
  void Close() { stream_->WritesDone(); }
  void Cancel() { context_.TryCancel(); }
  grpc::ClientReaderWriter<v1::HoldRegionRequest, v1::HoldRegionResponse>& stream() {
    return *stream_;
  }

  bool opened() const { return opened_; }
  const v1::HoldRegionResponse& response() const { return response_; }
  char* data() const { return data_; }

 private:
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::HoldRegionRequest, v1::HoldRegionResponse>> stream_;
  v1::HoldRegionResponse response_;
  bool opened_ = false;
  bool finished_ = false;
  char* data_ = nullptr;
};

class RegionCallTest : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    RpcOptions options;
    options.listen = {"unix:" + folder_.path("s"), "127.0.0.1:0"};
    options.receive_timeout = std::chrono::milliseconds(300);
    options.notable_calls = &calls_;
    const bool unified = GetParam();
    fixture_ = std::make_unique<RpcFixture>(
        options, FakeDeviceOptions{.unified_memory = unified, .pitch_alignment = unified ? 1 : 64},
        std::make_unique<CountingEvents>(),
        SharedRegionLimits{.total_bytes = 4 * kPage, .caller_bytes = 3 * kPage});
    stub_ = fixture_->Stub();
  }
  SharedRegionStore& store() { return fixture_->engine->regions(); }
  void AwaitUsed(size_t bytes) {
    while (store().used_bytes() != bytes) std::this_thread::yield();
  }
  // 4x6 ones at 0 times 6x5 ones at 64, D (fp32) at 128.
  static v1::MatmulRequest Request(const Held& held) {
    v1::MatmulRequest request;
    const auto operand = [&](v1::Operand& o, int64_t rows, int64_t cols, int64_t offset) {
      o.set_rows(rows);
      o.set_cols(cols);
      o.set_dtype(v1::BF16);
      o.mutable_region()->set_region(held.response().region());
      o.mutable_region()->set_offset(offset);
    };
    operand(*request.mutable_a(), 4, 6, 0);
    operand(*request.mutable_b(), 6, 5, 64);
    request.set_output_dtype(v1::FP32);
    request.mutable_output()->mutable_region()->set_region(held.response().region());
    request.mutable_output()->mutable_region()->set_offset(128);
    return request;
  }
  static void FillOnes(const Held& held) {
    for (int i = 0; i < 64; ++i) std::memcpy(held.data() + 2 * i, "\x80\x3f", 2);
  }
  static void ExpectSixes(const Held& held) {
    for (int i = 0; i < 20; ++i) {
      float value;
      std::memcpy(&value, held.data() + 128 + 4 * i, 4);
      EXPECT_EQ(value, 6.0f) << i;
    }
  }

  SocketFolder folder_;
  NotableCalls calls_{Nanos(0)};  // each call is slow
  std::unique_ptr<RpcFixture> fixture_;
  std::unique_ptr<v1::MatmulService::Stub> stub_;
};

INSTANTIATE_TEST_SUITE_P(Devices, RegionCallTest, testing::Bool(),
                         [](const auto& info) { return info.param ? "unified" : "gpu"; });

TEST_P(RegionCallTest, AProductInsideARegionMovesNothingThroughGrpc) {
  Held held(*stub_, 1);
  ASSERT_TRUE(held.opened());
  EXPECT_EQ(held.response().bytes(), kPage);
  EXPECT_EQ(held.response().region().size(), 32u);
  EXPECT_EQ(held.response().side_socket(), folder_.path("s.regions"));
  EXPECT_EQ(fixture_->device->registered_bytes(), static_cast<size_t>(kPage));
  held.Map();
  FillOnes(held);
  v1::MatmulResponse response;
  const grpc::Status status = fixture_->Call(Request(held), &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_TRUE(response.d().empty());
  EXPECT_EQ(response.rows(), 4);
  EXPECT_EQ(fixture_->engine->host_pool().used_bytes(), 0u);
  ExpectSixes(held);
  held.Close();
  EXPECT_TRUE(held.Finish().ok());
  AwaitUsed(0);
  EXPECT_EQ(fixture_->device->registered_bytes(), 0u);
}

TEST_P(RegionCallTest, EveryMixOfPlacesGivesTheSame) {
  Held held(*stub_);
  held.Map();
  const v1::MatmulRequest inline_request = RpcFixture::Ones();
  for (int mix = 0; mix < 8; ++mix) {
    FillOnes(held);
    v1::MatmulRequest request = Request(held);
    if (mix & 1) *request.mutable_a() = inline_request.a();
    if (mix & 2) *request.mutable_b() = inline_request.b();
    if (mix & 4) request.clear_output();
    v1::MatmulResponse response;
    const grpc::Status status = fixture_->Call(request, &response);
    ASSERT_TRUE(status.ok()) << status.error_message();
    if (mix & 4) std::memcpy(held.data() + 128, response.d().data(), response.d().size());
    ExpectSixes(held);
    std::memset(held.data(), 0, 512);
  }
}

TEST_P(RegionCallTest, TheRegionGoesWithItsCallHoweverThatEnds) {
  for (int end = 0; end < 3; ++end) {
    Held held(*stub_);
    ASSERT_TRUE(held.opened()) << end;
    const v1::MatmulRequest request = Request(held);
    if (end == 0) held.Close();
    if (end == 1) held.Cancel();
    if (end == 2) held.stream().Write(v1::HoldRegionRequest());
    const StatusCode codes[] = {StatusCode::OK, StatusCode::CANCELLED,
                                StatusCode::INVALID_ARGUMENT};
    EXPECT_EQ(held.Finish().error_code(), codes[end]);
    AwaitUsed(0);
    const grpc::Status status = fixture_->Call(request);
    EXPECT_EQ(status.error_code(), StatusCode::NOT_FOUND) << status.error_message();
    EXPECT_EQ(Fetch(ConnectTo(held.response().side_socket()), held.response().token()).fd, -1);
  }
}

TEST_P(RegionCallTest, ARunningProductKeepsTheMemory) {
  auto held = std::make_unique<Held>(*stub_);
  held->Map();
  FillOnes(*held);
  fixture_->device->Hold(FakeOp::kLaunch);
  v1::MatmulRequest request = Request(*held);
  std::thread client([&] {
    const grpc::Status status = fixture_->Call(request);
    EXPECT_TRUE(status.ok()) << status.error_message();
  });
  fixture_->device->AwaitHeld(FakeOp::kLaunch);
  held.reset();
  // Nobody else finds it, and it stays registered while the device may touch it.
  const Caller caller = {"uid:" + std::to_string(getuid())};
  const std::string& name = request.a().region().region();
  while (!absl::IsNotFound(store().Find(caller, name).status())) std::this_thread::yield();
  EXPECT_EQ(fixture_->device->registered_bytes(), static_cast<size_t>(kPage));
  fixture_->device->Release(FakeOp::kLaunch);
  client.join();
  AwaitUsed(0);
}

TEST_P(RegionCallTest, OverTcpThereIsNone) {
  const auto tcp = fixture_->Stub(1);
  Held held(*tcp);
  EXPECT_FALSE(held.opened());
  const grpc::Status status = held.Finish();
  EXPECT_EQ(status.error_code(), StatusCode::UNIMPLEMENTED);
  EXPECT_THAT(status.error_message(), HasSubstr("unix socket"));
  Held ours(*stub_);
  grpc::ClientContext context;
  v1::MatmulResponse response;
  EXPECT_EQ(tcp->Matmul(&context, Request(ours), &response).error_code(), StatusCode::NOT_FOUND);
}

TEST_P(RegionCallTest, SizesAndBudgets) {
  for (const int64_t bytes : {int64_t{0}, int64_t{-1}}) {
    Held held(*stub_, bytes);
    EXPECT_EQ(held.Finish().error_code(), StatusCode::INVALID_ARGUMENT);
  }
  {
    Held held(*stub_, 3 * kPage + 1);  // can never fit: no retry
    const grpc::Status status = held.Finish();
    EXPECT_EQ(status.error_code(), StatusCode::RESOURCE_EXHAUSTED);
    EXPECT_TRUE(status.error_details().empty());
  }
  {
    Held most(*stub_, 3 * kPage);
    ASSERT_TRUE(most.opened());
    Held more(*stub_, 1);
    const grpc::Status status = more.Finish();
    EXPECT_EQ(status.error_code(), StatusCode::RESOURCE_EXHAUSTED);
    EXPECT_THAT(status.error_details(), HasSubstr("RetryInfo"));
    most.Close();
    EXPECT_TRUE(most.Finish().ok());
  }
  EXPECT_TRUE(Held(*stub_, 3 * kPage).opened()) << "a caller that closed one may open another";
}

TEST_P(RegionCallTest, ADeviceThatCannotPinIsAnError) {
  fixture_->device->FailNext(FakeOp::kRegisterHost, absl::InternalError("no pins"));
  Held held(*stub_);
  EXPECT_FALSE(held.opened());
  EXPECT_EQ(held.Finish().error_code(), StatusCode::INTERNAL);
  EXPECT_TRUE(Held(*stub_).opened());
}

TEST_P(RegionCallTest, WhoNeverSaysHowMuchIsCutOff) {
  grpc::ClientContext context;
  const auto stream = stub_->HoldRegion(&context);
  v1::HoldRegionResponse response;
  EXPECT_FALSE(stream->Read(&response));
  EXPECT_EQ(stream->Finish().error_code(), StatusCode::DEADLINE_EXCEEDED);
  grpc::ClientContext silent;
  const auto ended = stub_->HoldRegion(&silent);
  ended->WritesDone();
  EXPECT_EQ(ended->Finish().error_code(), StatusCode::INVALID_ARGUMENT);
}

TEST_P(RegionCallTest, AHeldRegionOutlivesTheReceiveTimeout) {
  Held held(*stub_);
  held.Map();
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(700);
  while (std::chrono::steady_clock::now() < end) {
    FillOnes(held);
    ASSERT_TRUE(fixture_->Call(Request(held)).ok());
  }
  ExpectSixes(held);
}

TEST_P(RegionCallTest, HowLongItIsHeldIsNotSlow) {
  Held held(*stub_);
  held.Close();
  EXPECT_TRUE(held.Finish().ok());
  Held refused(*stub_, -1);
  EXPECT_FALSE(refused.Finish().ok());
  fixture_->events->AwaitEnded(2);
  EXPECT_EQ(calls_.Read().slow.count, 0u);
  ASSERT_EQ(calls_.Read().failed.count, 1u);
  EXPECT_EQ(calls_.Read().failed.calls[0]->method, "HoldRegion");
}

TEST_P(RegionCallTest, ADrainDoesNotWaitForRegionsButForTheirProducts) {
  Held held(*stub_);
  held.Map();
  FillOnes(held);
  fixture_->device->Hold(FakeOp::kLaunch);
  std::thread client([&] { EXPECT_TRUE(fixture_->Call(Request(held)).ok()); });
  fixture_->device->AwaitHeld(FakeOp::kLaunch);
  fixture_->server->RefuseNewCalls();
  Held late(*stub_);
  EXPECT_EQ(late.Finish().error_code(), StatusCode::UNAVAILABLE);
  fixture_->device->Release(FakeOp::kLaunch);
  EXPECT_TRUE(fixture_->server->WaitIdle(kInfiniteFuture)) << "with a region held";
  client.join();
  ExpectSixes(held);
  fixture_->server->EndHeldCalls();
  const grpc::Status status = held.Finish();
  EXPECT_EQ(status.error_code(), StatusCode::UNAVAILABLE);
  EXPECT_THAT(status.error_message(), HasSubstr("drained"));
  EXPECT_EQ(fixture_->server->totals().started, 1) << "HoldRegion is not one of those calls";
}

TEST_P(RegionCallTest, ShutdownEndsThemAll) {
  std::vector<std::unique_ptr<Held>> held;
  for (int i = 0; i < 3; ++i) held.push_back(std::make_unique<Held>(*stub_));
  fixture_->server->Shutdown();
  for (const auto& one : held) {
    EXPECT_EQ(one->Finish().error_code(), StatusCode::UNAVAILABLE);
  }
  AwaitUsed(0);
}

TEST_P(RegionCallTest, ManyOpenedAndLeftAtEveryMoment) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([this, t] {
      const auto stub = fixture_->Stub();
      for (int i = 0; i < 50; ++i) {
        grpc::ClientContext context;
        const auto stream = stub->HoldRegion(&context);
        v1::HoldRegionRequest request;
        request.set_bytes(kPage);
        stream->Write(request);
        v1::HoldRegionResponse response;
        if ((i + t) % 3 != 0) stream->Read(&response);
        if ((i + t) % 2 != 0) context.TryCancel();
        stream->WritesDone();
        while (stream->Read(&response)) {
        }
        (void)stream->Finish();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  AwaitUsed(0);
  fixture_->events->AwaitEnded(200);
  EXPECT_EQ(fixture_->device->registered_bytes(), 0u);
}

TEST(RegionWireTest, TheRequestIsOneNumber) {
  const auto parse = [](const std::string& bytes) {
    const grpc::Slice slice(bytes);
    return ParseHoldRegion(grpc::ByteBuffer(&slice, 1));
  };
  v1::HoldRegionRequest request;
  request.set_bytes(77);
  EXPECT_EQ(*parse(request.SerializeAsString()), 77u);
  for (const std::string& bad : {std::string(), std::string("\xff"), std::string(5000, 'x')}) {
    EXPECT_TRUE(absl::IsInvalidArgument(parse(bad).status()));
  }
}

TEST(RegionOffTest, WithoutABudgetItIsUnimplementedAndSaysHow) {
  SocketFolder folder;
  RpcOptions options;
  options.listen = {"unix:" + folder.path("s")};
  RpcFixture fixture(options);
  const auto stub = fixture.Stub();
  Held held(*stub);
  const grpc::Status status = held.Finish();
  EXPECT_EQ(status.error_code(), StatusCode::UNIMPLEMENTED);
  EXPECT_THAT(status.error_message(), HasSubstr("--allow-shared-memory"));
  EXPECT_EQ(access(folder.path("s.regions").c_str(), F_OK), -1);
}

}  // namespace
}  // namespace tcgemm
