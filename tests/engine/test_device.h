// A device for the engine's tests: computes rightly in plain loops, and waits, fails or dies on
// command.
//
// Asynchronous (the default, like a GPU): operations wait in their stream until someone waits for
// an event behind them, so memory that went back too early is seen. Synchronous (like the CPU):
// everything runs inside the call. Streams are not locked: TSan finds two users of one. (The fake
// of tests/kernels runs each stream on a thread of its own: it can neither block the caller in
// Launch, as the CPU does, nor compute wrongly.)
#ifndef TCGEMM_TESTS_ENGINE_TEST_DEVICE_H_
#define TCGEMM_TESTS_ENGINE_TEST_DEVICE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "kernels/device.h"

namespace tcgemm {

struct TestDeviceOptions {
  bool unified_memory = false;
  bool synchronous = false;
  bool reads_pinned = false;  // launches take host memory too
  int64_t pitch_alignment = 8;
  double flops_per_second = 1e9;
  double failure_rate = 0;  // of every operation on a stream
  uint64_t seed = 1;
  bool wrong = false;  // one element of every product is off
  int max_problems = 1024;
};

// The test's end of the device; outlives it. Thread-safe.
class TestDeviceControl {
 public:
  enum class Operation { kCopyIn, kCopyOut, kLaunch, kRecord, kWait, kElapsed, kRegister };

  explicit TestDeviceControl(const TestDeviceOptions& options)
      : options_(options), random_(options.seed) {}

  // From now on launches stop before they compute, until Release.
  void Hold();
  void Release();
  // Blocks until `count` launches have reached the device in all: taken from the queue, that is.
  void WaitForLaunches(int count);
  int launches() const;
  // Launches that had room for partial sums (GemmProblem::workspace).
  int workspaces() const {
    MutexLock lock(&mutex_);
    return workspaces_;
  }
  std::vector<int> batch_sizes() const;

  // The next operation of this kind fails.
  void FailNext(Operation operation);
  // Everything fails from now on, and healthy() is false.
  void Break();
  bool broken() const;
  // Nothing that was launched and not waited for ends any more: waits block until Expire, and are
  // then told that their limit has passed, without waiting for it.
  void Hang();
  void Expire();
  // What waits were given while the device hung, added up.
  Nanos waited() const;
  // Host memory that is registered now, and its bytes.
  std::map<const void*, size_t> registered() const;
  // From now on registrations wait, until Release; blocks until one does.
  void HoldRegister();
  void AwaitRegister();
  void ReleaseRegister();
  // What the device saw that no engine may do; empty when all was well.
  std::string violation() const;

  // The device's end.
  const TestDeviceOptions& options() const { return options_; }
  absl::Status Check(Operation operation);
  void OnLaunch(absl::Span<const GemmProblem> batch);
  // True: the device hangs, and the limit has passed.
  bool WaitInVain(Nanos limit);
  void WaitWhileHeld();
  void AddRegistered(const void* data, size_t bytes);
  void RemoveRegistered(const void* data);
  void AddDeviceMemory(const std::byte* data, size_t bytes);
  bool IsDeviceMemory(const void* data) const;
  void Violation(const std::string& what);

 private:
  const TestDeviceOptions options_;
  mutable Mutex mutex_;
  CondVar cv_;
  bool held_ ABSL_GUARDED_BY(mutex_) = false;
  bool hung_ ABSL_GUARDED_BY(mutex_) = false;
  bool expired_ ABSL_GUARDED_BY(mutex_) = false;
  Nanos waited_ ABSL_GUARDED_BY(mutex_){0};
  bool broken_ ABSL_GUARDED_BY(mutex_) = false;
  std::map<const void*, size_t> registered_ ABSL_GUARDED_BY(mutex_);
  bool register_held_ ABSL_GUARDED_BY(mutex_) = false;
  bool registering_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<Operation> fail_next_ ABSL_GUARDED_BY(mutex_);
  std::vector<int> batch_sizes_ ABSL_GUARDED_BY(mutex_);
  int workspaces_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<const std::byte*, size_t> device_memory_ ABSL_GUARDED_BY(mutex_);
  std::string violation_ ABSL_GUARDED_BY(mutex_);
  std::mt19937_64 random_ ABSL_GUARDED_BY(mutex_);
};

// Kernel time between any two events, as this device reports it.
inline constexpr Nanos kTestDeviceElapsed{1000};

std::unique_ptr<Device> CreateTestDevice(std::shared_ptr<TestDeviceControl> control);

}  // namespace tcgemm

#endif  // TCGEMM_TESTS_ENGINE_TEST_DEVICE_H_
