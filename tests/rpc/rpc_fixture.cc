#include "tests/rpc/rpc_fixture.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>

namespace tcgemm {
namespace {

// Far beyond what a test needs: one that waits for what never comes fails instead of hanging.
std::chrono::steady_clock::time_point Patience() {
  return std::chrono::steady_clock::now() + std::chrono::seconds(60);
}

}  // namespace

void CountingEvents::OnQueueChanged(int64_t jobs, int64_t) {
  MutexLock lock(&mutex_);
  queued_ = jobs;
  changed_.NotifyAll();
}

void CountingEvents::OnLaunch(const LaunchEvent&) {
  MutexLock lock(&mutex_);
  ++launches_;
}

void CountingEvents::OnCancelled(Stage stage) { OnCallCancelled(stage); }

void CountingEvents::OnCallStarted(std::string_view) {
  MutexLock lock(&mutex_);
  ++started_;
}

void CountingEvents::OnCallEnded(std::string_view, absl::StatusCode code, Nanos) {
  MutexLock lock(&mutex_);
  ++ended_;
  ++codes_[code];
  changed_.NotifyAll();
}

void CountingEvents::OnRejected(RejectReason reason) {
  MutexLock lock(&mutex_);
  ++rejected_[reason];
}

void CountingEvents::OnCallCancelled(Stage stage) {
  MutexLock lock(&mutex_);
  ++cancelled_[stage];
}

std::map<absl::StatusCode, int> CountingEvents::AwaitEnded(int calls) {
  const auto limit = Patience();
  MutexLock lock(&mutex_);
  while ((ended_ < calls || ended_ < started_) && std::chrono::steady_clock::now() < limit) {
    changed_.WaitUntil(&mutex_, limit);
  }
  return codes_;
}

void CountingEvents::AwaitQueued(int64_t jobs) {
  const auto limit = Patience();
  MutexLock lock(&mutex_);
  while (queued_ != jobs && std::chrono::steady_clock::now() < limit) {
    changed_.WaitUntil(&mutex_, limit);
  }
  EXPECT_EQ(queued_, jobs);
}

std::map<RejectReason, int> CountingEvents::rejected() {
  MutexLock lock(&mutex_);
  return rejected_;
}

std::map<Stage, int> CountingEvents::cancelled() {
  MutexLock lock(&mutex_);
  return cancelled_;
}

int CountingEvents::launches() {
  MutexLock lock(&mutex_);
  return launches_;
}

RpcFixture::RpcFixture(RpcOptions rpc, FakeDeviceOptions device_options,
                       std::unique_ptr<CountingEvents> the_events, SharedRegionLimits shared)
    : events(std::move(the_events)) {
  auto fake = std::make_unique<FakeDevice>(device_options);
  device = fake.get();
  EngineOptions options;
  options.pinned_bytes = 16 << 20;
  options.device_bytes = 48 << 20;
  options.resident_bytes = 1 << 20;
  options.shared = shared;
  options.max_batch = 1;
  options.slots = 1;
  // A sanitizer on a busy machine is slow; that is not a hang.
  options.watchdog_min = std::chrono::minutes(5);
  engine = Engine::Create(options, std::move(fake), Clock::Real(), events.get()).value();
  if (rpc.listen.empty()) rpc.listen = {"127.0.0.1:0"};
  server = RpcServer::Start(rpc, engine.get(), Clock::Real(), events.get()).value();
  server->SetServing(true);
}

RpcFixture::~RpcFixture() {
  server.reset();
  engine.reset();
}

std::unique_ptr<v1::MatmulService::Stub> RpcFixture::Stub(int address) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  arguments.SetMaxReceiveMessageSize(-1);
  return v1::MatmulService::NewStub(grpc::CreateCustomChannel(
      server->addresses().at(address), grpc::InsecureChannelCredentials(), arguments));
}

v1::MatmulRequest RpcFixture::Ones(int64_t m, int64_t n, int64_t k) {
  const auto fill = [](v1::Operand* operand, int64_t rows, int64_t cols) {
    operand->set_rows(rows);
    operand->set_cols(cols);
    operand->set_dtype(v1::BF16);
    std::string* const bytes = operand->mutable_inline_();
    for (int64_t i = 0; i < rows * cols; ++i) bytes->append("\x80\x3f", 2);
  };
  v1::MatmulRequest request;
  fill(request.mutable_a(), m, k);
  fill(request.mutable_b(), k, n);
  request.set_output_dtype(v1::FP32);
  return request;
}

grpc::Status RpcFixture::Call(const v1::MatmulRequest& request, v1::MatmulResponse* response,
                              int timeout_ms) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(timeout_ms));
  v1::MatmulResponse ignored;
  return Stub()->Matmul(&context, request, response == nullptr ? &ignored : response);
}

}  // namespace tcgemm
