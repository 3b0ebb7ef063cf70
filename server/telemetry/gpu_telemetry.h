// Asks the GPU about itself on a thread of its own, so that whoever wants to know never waits for
// the driver: nvidia's calls take tens of milliseconds, and for ever once the GPU is off its bus.
#ifndef TCGEMM_SERVER_TELEMETRY_GPU_TELEMETRY_H_
#define TCGEMM_SERVER_TELEMETRY_GPU_TELEMETRY_H_

#include <functional>
#include <memory>
#include <thread>

#include "absl/status/status.h"
#include "base/clock.h"
#include "server/telemetry/gpu_account.h"
#include "server/telemetry/gpu_reading.h"

namespace tcgemm {

struct GpuTelemetryOptions {
  Nanos period = std::chrono::seconds(1);
  // After a failure, before the driver is opened anew.
  Nanos retry_period = std::chrono::seconds(30);
  // A reading older than that is none.
  Nanos stale_after = std::chrono::seconds(5);
  // How long the end waits for a call that is under way; then it leaves the thread to it.
  Nanos stop_patience = std::chrono::seconds(1);
  // Told when reading fails for the first time or again (why), and when it works again (OK). Called
  // by the thread; may be called, if that was left behind, until the process ends.
  std::function<void(const absl::Status&)> on_change;
};

// Thread-safe.
class GpuTelemetry {
 public:
  // Starts the thread, which opens the reader first. `clock` gives readings their age.
  GpuTelemetry(OpenGpuReader open, const Clock* clock, GpuTelemetryOptions options = {});
  ~GpuTelemetry();
  GpuTelemetry(const GpuTelemetry&) = delete;
  GpuTelemetry& operator=(const GpuTelemetry&) = delete;

  // Never waits for the GPU.
  GpuSnapshot Latest() const;
  // Waits for the first answer of the GPU, good or bad, at most for `patience`. False: there is
  // none yet, as when the driver hangs; then `on_change` was told nothing either.
  bool WaitForFirst(Nanos patience) const;
  // Ends the thread, waiting for it as the options say. False when it was left behind in a call
  // that does not return: exit(3) could wait for that call for ever (it takes the dynamic loader's
  // lock, which a library that hangs while it is loaded holds). Idempotent; not from two threads at
  // once.
  bool Stop();

 private:
  class Sampler;

  bool stopped_ = false;
  bool left_behind_ = false;
  // The thread's too: it may outlive this.
  const std::shared_ptr<Sampler> sampler_;
  const Nanos stop_patience_;
  std::thread thread_;
};

}  // namespace tcgemm

#endif  // TCGEMM_SERVER_TELEMETRY_GPU_TELEMETRY_H_
