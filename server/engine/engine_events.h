// What happens in the server, told to whoever counts it (server/http's metrics, a test).
//
// Implementations must be thread-safe, fast (they run on the serving path, some under a lock) and
// must not call back into the engine.
#ifndef TCGEMM_SERVER_ENGINE_ENGINE_EVENTS_H_
#define TCGEMM_SERVER_ENGINE_ENGINE_EVENTS_H_

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "base/clock.h"
#include "kernels/device.h"
#include "kernels/plan.h"

namespace tcgemm {

// The stages of a request, in order. Names as in tcgemm_stage_duration_seconds{stage}. A response's
// Timings have all but the last, which is not over when they are written.
enum class Stage { kReceive, kDecode, kQueue, kCopyIn, kKernel, kVerify, kCopyOut, kSend };
inline constexpr int kStageCount = 8;
std::string_view StageName(Stage stage);  // "receive", "decode", "queue", "copy_in", …

enum class RejectReason {
  kDraining,
  kNotReady,
  kInflight,
  kQueue,
  kMemory,
  kMessage,
  kDeadline,
  kCredentials,
  kCaller  // has as much under way as one caller may
};
inline constexpr int kRejectReasonCount = 9;
std::string_view RejectReasonName(RejectReason reason);  // "draining", "not_ready", "inflight", …

enum class DeviceErrorKind { kLaunch, kCopy, kEvent, kSelfTest, kWatchdog };
inline constexpr int kDeviceErrorKindCount = 5;
std::string_view DeviceErrorKindName(DeviceErrorKind kind);  // "launch", "copy", "event", …

struct LaunchEvent {
  KernelId kernel = KernelId::kCpuPlain;
  int batch_size = 0;  // requests
  int coalesced = 0;   // of those: stacked with others (server/engine/stacking.h)
  double flops = 0;
  Nanos kernel_time{0};
};

class EngineEvents {
 public:
  virtual ~EngineEvents() = default;
  // Jobs and bytes waiting in the batcher, after each change.
  virtual void OnQueueChanged(int64_t jobs, int64_t bytes) = 0;
  virtual void OnLaunch(const LaunchEvent& event) = 0;
  virtual void OnCopyIn(size_t bytes) = 0;
  virtual void OnCopyOut(size_t bytes) = 0;
  // Look-ups of tensor maps by one launch; not called when there were none.
  virtual void OnTensorMaps(const TensorMapCounts& counts) = 0;
  // A job left before its result was ready (deadline, cancel), in this stage.
  virtual void OnCancelled(Stage stage) = 0;
  // A result held a NaN or an Inf.
  virtual void OnNonfiniteOutput() = 0;
  virtual void OnDeviceError(DeviceErrorKind kind) = 0;
  virtual void OnDeviceHealth(bool healthy) = 0;
};

class CallEvents {
 public:
  virtual ~CallEvents() = default;
  // Every OnCallStarted is followed by exactly one OnCallEnded with the same method.
  virtual void OnCallStarted(std::string_view method) = 0;
  virtual void OnCallEnded(std::string_view method, absl::StatusCode code, Nanos duration) = 0;
  virtual void OnStage(Stage stage, Nanos duration) = 0;
  virtual void OnRejected(RejectReason reason) = 0;
  // A call ended by its client or its deadline outside the engine (kReceive, kDecode, kCopyOut).
  virtual void OnCallCancelled(Stage stage) = 0;
  // A connection was closed at once: too few file descriptors were left.
  virtual void OnConnectionRefused() = 0;
};

class SecurityEvents {
 public:
  virtual ~SecurityEvents() = default;
  // The certificate that is served from now on expires then, in seconds since the epoch.
  virtual void OnCertificate(int64_t expires_at) = 0;
  // New files were found: served, or refused for what is wrong with them.
  virtual void OnCertificateReload(bool ok) = 0;
};

}  // namespace tcgemm

#endif  // TCGEMM_SERVER_ENGINE_ENGINE_EVENTS_H_
