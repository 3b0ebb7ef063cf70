// A real RpcServer in this process, over a fake device, and typed clients of it.
#ifndef TCGEMM_TESTS_RPC_RPC_FIXTURE_H_
#define TCGEMM_TESTS_RPC_RPC_FIXTURE_H_

#include <grpcpp/grpcpp.h>

#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "base/mutex.h"
#include "server/engine/engine.h"
#include "server/engine/engine_events.h"
#include "server/rpc/rpc_server.h"
#include "tcgemm/v1/matmul.grpc.pb.h"
#include "tests/kernels/fake_device.h"

namespace tcgemm {

// Counts what it is told. Thread-safe.
class CountingEvents : public EngineEvents, public CallEvents {
 public:
  void OnQueueChanged(int64_t jobs, int64_t) override;
  void OnLaunch(const LaunchEvent& event) override;
  void OnCopyIn(size_t) override {}
  void OnCopyOut(size_t) override {}
  void OnTensorMaps(const TensorMapCounts&) override {}
  void OnCancelled(Stage stage) override;
  void OnNonfiniteOutput() override {}
  void OnDeviceError(DeviceErrorKind) override {}
  void OnDeviceHealth(bool) override {}
  void OnCallStarted(std::string_view method) override;
  void OnCallEnded(std::string_view method, absl::StatusCode code, Nanos) override;
  void OnStage(Stage, Nanos) override {}
  void OnRejected(RejectReason reason) override;
  void OnCallCancelled(Stage stage) override;
  void OnConnectionRefused() override {}

  // Blocks until as many calls have ended as were started and that are at least `calls`.
  std::map<absl::StatusCode, int> AwaitEnded(int calls);
  void AwaitQueued(int64_t jobs);
  std::map<RejectReason, int> rejected();
  std::map<Stage, int> cancelled();
  int launches();

 private:
  Mutex mutex_;
  CondVar changed_;
  int started_ ABSL_GUARDED_BY(mutex_) = 0;
  int ended_ ABSL_GUARDED_BY(mutex_) = 0;
  int launches_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t queued_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<absl::StatusCode, int> codes_ ABSL_GUARDED_BY(mutex_);
  std::map<RejectReason, int> rejected_ ABSL_GUARDED_BY(mutex_);
  std::map<Stage, int> cancelled_ ABSL_GUARDED_BY(mutex_);
};

class RpcFixture {
 public:
  explicit RpcFixture(RpcOptions rpc = {}, FakeDeviceOptions device = {},
                      std::unique_ptr<CountingEvents> events = std::make_unique<CountingEvents>(),
                      SharedRegionLimits shared = {});
  ~RpcFixture();

  // A stub on a connection of its own.
  std::unique_ptr<v1::MatmulService::Stub> Stub(int address = 0);
  // Ones of 4x6 and 6x5: D is all 6.
  static v1::MatmulRequest Ones(int64_t m = 4, int64_t n = 5, int64_t k = 6);
  grpc::Status Call(const v1::MatmulRequest& request, v1::MatmulResponse* response = nullptr,
                    int timeout_ms = 20000);

  FakeDevice* device = nullptr;  // the engine's
  std::unique_ptr<CountingEvents> events;
  std::unique_ptr<Engine> engine;
  std::unique_ptr<RpcServer> server;
};

// The receive buffers of calls that ended may go a moment later.
inline void AwaitEmptyPool(const RpcFixture& fixture) {
  while (fixture.engine->host_pool().used_bytes() > 0) std::this_thread::yield();
}

}  // namespace tcgemm

#endif  // TCGEMM_TESTS_RPC_RPC_FIXTURE_H_
