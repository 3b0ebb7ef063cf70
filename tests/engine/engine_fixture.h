// What the engine's tests share: events that are counted, outcomes that are collected.
#ifndef TCGEMM_TESTS_ENGINE_ENGINE_FIXTURE_H_
#define TCGEMM_TESTS_ENGINE_ENGINE_FIXTURE_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "server/engine/engine.h"
#include "tests/engine/test_device.h"
#include "tests/kernels/epilogue_data.h"

namespace tcgemm {

struct CountingEvents final : EngineEvents {
  std::atomic<int64_t> queue_jobs{0};
  std::atomic<int64_t> queue_bytes{0};
  std::atomic<int> launches{0};
  std::atomic<int> launched_jobs{0};
  std::atomic<int> coalesced{0};
  std::atomic<int64_t> bytes_in{0};
  std::atomic<int64_t> bytes_out{0};
  std::atomic<int64_t> map_hits{0};
  std::atomic<int64_t> map_misses{0};
  std::atomic<int> cancelled{0};
  std::atomic<int> nonfinite{0};
  std::atomic<int> errors[kDeviceErrorKindCount] = {};
  std::atomic<int> healthy{-1};

  void OnQueueChanged(int64_t jobs, int64_t bytes) override {
    queue_jobs = jobs;
    queue_bytes = bytes;
  }
  void OnLaunch(const LaunchEvent& event) override {
    ++launches;
    launched_jobs += event.batch_size;
    coalesced += event.coalesced;
  }
  void OnCopyIn(size_t bytes) override { bytes_in += static_cast<int64_t>(bytes); }
  void OnCopyOut(size_t bytes) override { bytes_out += static_cast<int64_t>(bytes); }
  void OnTensorMaps(const TensorMapCounts& counts) override {
    map_hits += counts.hits;
    map_misses += counts.misses;
  }
  void OnCancelled(Stage /*stage*/) override { ++cancelled; }
  void OnNonfiniteOutput() override { ++nonfinite; }
  void OnDeviceError(DeviceErrorKind kind) override { ++errors[static_cast<int>(kind)]; }
  void OnDeviceHealth(bool is_healthy) override { healthy = is_healthy ? 1 : 0; }
  int error_count(DeviceErrorKind kind) const { return errors[static_cast<int>(kind)]; }
};

// How a job ended. The lease is back in its pool, D was copied out.
struct Ended {
  absl::Status status;
  bool had_memory = false;
  std::vector<std::byte> d;
  JobTimings timings;
  std::string kernel;
  double tflops = 0;
  int batched_with = 0;
};

// Collects the ends of jobs by a number that the test chose. Thread-safe.
class Inbox {
 public:
  void Put(int tag, Ended ended) ABSL_LOCKS_EXCLUDED(mutex_);
  // Blocks until the job `tag` has ended.
  Ended Wait(int tag) ABSL_LOCKS_EXCLUDED(mutex_);
  // How often the job ended so far.
  int count(int tag) const ABSL_LOCKS_EXCLUDED(mutex_);
  int total() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  mutable Mutex mutex_;
  CondVar cv_;
  std::map<int, std::vector<Ended>> ended_ ABSL_GUARDED_BY(mutex_);
};

struct JobSpec {
  GemmShape shape{.m = 4, .n = 5, .k = 6};
  DType output = DType::kBf16;
  bool transpose_a = false;
  bool transpose_b = false;
  uint64_t seed = 1;
  TimePoint deadline = kInfiniteFuture;
  bool nan_filled = false;
  std::optional<EpilogueCase> epilogue = {};
  bool fastest = false;
};

// The operands of `spec.epilogue`, as MakeJob has them.
EpilogueData EpilogueDataOf(const JobSpec& spec);

// A job over seeded random operands in a lease of the engine's pool (which must have room).
Job MakeJob(Engine& engine, const JobSpec& spec, Inbox& inbox, int tag);

// An engine on a test device, and all that it needs.
struct EngineFixture {
  explicit EngineFixture(const TestDeviceOptions& device_options = {},
                         EngineOptions options = DefaultOptions(),
                         const Clock* clock = Clock::Real());
  ~EngineFixture();

  static EngineOptions DefaultOptions() {
    return {.pinned_bytes = size_t{4} << 20, .device_bytes = size_t{3} << 20};
  }

  absl::StatusOr<JobId> Submit(int tag, const JobSpec& spec = {}) {
    return engine->Submit(MakeJob(*engine, spec, inbox, tag));
  }
  // Submits and holds a job in the device; what comes next waits in the queue (of a synchronous
  // device, or one with a single slot).
  void SubmitBlocker(int tag);
  // Spins until no job is pending.
  void WaitUntilIdle() const;

  std::shared_ptr<TestDeviceControl> device;
  CountingEvents events;
  Inbox inbox;
  std::atomic<int> fatal_calls{0};
  std::atomic<FatalCause> fatal_cause{};  // of the last
  std::unique_ptr<Engine> engine;         // goes first: its jobs end into the inbox
};

}  // namespace tcgemm

#endif  // TCGEMM_TESTS_ENGINE_ENGINE_FIXTURE_H_
