#include "server/telemetry/gpu_telemetry.h"

#include <pthread.h>

#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/status_macros.h"

namespace tcgemm {

// The mutex is never held during a call of the reader: those may not return.
class GpuTelemetry::Sampler {
 public:
  Sampler(OpenGpuReader open, const Clock* clock, GpuTelemetryOptions options)
      : open_(std::move(open)),
        clock_(clock),
        options_(std::move(options)),
        account_(options_.stale_after) {}

  // The thread.
  void Run() ABSL_LOCKS_EXCLUDED(mutex_);
  bool WaitForFirst(Nanos patience) ABSL_LOCKS_EXCLUDED(mutex_);
  // True when the thread has ended, or will at once.
  bool Stop(Nanos patience) ABSL_LOCKS_EXCLUDED(mutex_);
  GpuSnapshot Latest() const ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(&mutex_);
    return account_.At(clock_->Now());
  }

 private:
  void RunUntilStopped() ABSL_LOCKS_EXCLUDED(mutex_);
  // Asks everything once. Xids first: they tell why what follows fails or hangs.
  absl::Status Sample(std::unique_ptr<GpuReader>& reader) ABSL_LOCKS_EXCLUDED(mutex_);
  // False when it was stopped: nothing of the caller's may be touched any more.
  bool Settle(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);
  bool Pause(Nanos time) ABSL_LOCKS_EXCLUDED(mutex_);
  bool stopped() const ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(&mutex_);
    return stopped_;
  }

  const OpenGpuReader open_;
  const Clock* const clock_;
  const GpuTelemetryOptions options_;
  mutable Mutex mutex_;
  CondVar changed_;
  GpuAccount account_ ABSL_GUARDED_BY(mutex_);
  bool failing_ ABSL_GUARDED_BY(mutex_) = false;
  bool answered_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
};

void GpuTelemetry::Sampler::Run() {
  RunUntilStopped();
  MutexLock lock(&mutex_);
  ended_ = true;
  changed_.NotifyAll();
}

void GpuTelemetry::Sampler::RunUntilStopped() {
  std::unique_ptr<GpuReader> reader;
  while (true) {
    const absl::Status status = Sample(reader);
    if (!Settle(status) || absl::IsNotFound(status)) return;
    if (!status.ok()) reader.reset();
    if (!Pause(status.ok() ? options_.period : options_.retry_period)) return;
  }
}

absl::Status GpuTelemetry::Sampler::Sample(std::unique_ptr<GpuReader>& reader) {
  if (reader == nullptr) {
    TCGEMM_ASSIGN_OR_RETURN(reader, open_());
  }
  if (stopped()) return absl::OkStatus();
  const absl::StatusOr<std::vector<uint64_t>> xids = reader->TakeXids();
  if (xids.ok()) {
    MutexLock lock(&mutex_);
    account_.OnXids(*xids);
  }
  if (stopped()) return absl::OkStatus();
  const TimePoint asked = clock_->Now();
  TCGEMM_ASSIGN_OR_RETURN(const GpuReading reading, reader->Read());
  MutexLock lock(&mutex_);
  account_.OnReading(reading, asked);
  return xids.status();
}

bool GpuTelemetry::Sampler::Settle(const absl::Status& status) {
  bool changed = false;
  {
    MutexLock lock(&mutex_);
    if (stopped_) return false;
    if (!status.ok()) account_.OnFailure();
    changed = failing_ == status.ok();
    failing_ = !status.ok();
  }
  if (changed && options_.on_change != nullptr) options_.on_change(status);
  MutexLock lock(&mutex_);
  answered_ = true;
  changed_.NotifyAll();
  return true;
}

bool GpuTelemetry::Sampler::WaitForFirst(Nanos patience) {
  const TimePoint end = Clock::Real()->Now() + patience;
  MutexLock lock(&mutex_);
  while (!answered_ && !ended_ && changed_.WaitUntil(&mutex_, end)) {
  }
  return answered_;
}

bool GpuTelemetry::Sampler::Pause(Nanos time) {
  // Real time: what paces the thread is no policy.
  const TimePoint end = Clock::Real()->Now() + time;
  MutexLock lock(&mutex_);
  while (!stopped_ && changed_.WaitUntil(&mutex_, end)) {
  }
  return !stopped_;
}

bool GpuTelemetry::Sampler::Stop(Nanos patience) {
  const TimePoint end = Clock::Real()->Now() + patience;
  MutexLock lock(&mutex_);
  stopped_ = true;
  changed_.NotifyAll();
  while (!ended_ && changed_.WaitUntil(&mutex_, end)) {
  }
  return ended_;
}

GpuTelemetry::GpuTelemetry(OpenGpuReader open, const Clock* clock, GpuTelemetryOptions options)
    : sampler_(std::make_shared<Sampler>(std::move(open), clock, options)),
      stop_patience_(options.stop_patience),
      thread_([sampler = sampler_] { sampler->Run(); }) {
  pthread_setname_np(thread_.native_handle(), "gpu-telemetry");
}

GpuTelemetry::~GpuTelemetry() { Stop(); }

bool GpuTelemetry::WaitForFirst(Nanos patience) const { return sampler_->WaitForFirst(patience); }

bool GpuTelemetry::Stop() {
  if (std::exchange(stopped_, true)) return !left_behind_;
  left_behind_ = !sampler_->Stop(stop_patience_);
  left_behind_ ? thread_.detach() : thread_.join();
  return !left_behind_;
}

GpuSnapshot GpuTelemetry::Latest() const { return sampler_->Latest(); }

}  // namespace tcgemm
