// A Device for tests: computes right, but waits, fails, dies and counts on command.
//
// Streams are honest: each runs its work in order on a thread of its own, so CopyIn, Launch,
// CopyOut and Record return at once and Wait blocks. Memory is checked: work that touches memory
// of the wrong kind, or past the end of an allocation, fails with INTERNAL as a GPU would fault.
// Results have the bits of the cpu_plain kernel.
//
// Nothing here sleeps unless FakeDeviceOptions::delay does.
#ifndef TCGEMM_TESTS_KERNELS_FAKE_DEVICE_H_
#define TCGEMM_TESTS_KERNELS_FAKE_DEVICE_H_

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "kernels/device.h"

namespace tcgemm {

enum class FakeOp {
  kAllocatePinned,
  kAllocateDevice,
  kCreateStream,
  kCreateEvent,
  kCopyIn,
  kCopyOut,
  kLaunch,
  kRecord,
  kWait,
  kElapsed,
  kRegisterHost,
};
inline constexpr int kFakeOps = 11;

struct FakeDeviceOptions {
  std::string name = "fake";
  bool unified_memory = false;
  int64_t pitch_alignment = 64;  // of A and B in launches, checked; 1 asks for nothing
  double flops_per_second = 1e12;
  int max_problems = 1024;  // in one launch
  // Limit of all allocations together, pinned and device.
  size_t memory_bytes = size_t{1} << 34;
  // Each call of an operation fails with this probability, from `seed`, with INTERNAL.
  double failure_probability = 0;
  uint64_t seed = 1;
  // Called on the stream's thread before each copy and launch, with a uniform random number in
  // [0, 1), without locks; may sleep or spin. Null: no delay.
  std::function<void(double)> delay;
  const Clock* clock = Clock::Real();  // what events record; must outlive the device
};

// Thread-safe. Every control below may be used while the device is in use.
class FakeDevice final : public Device {
 public:
  explicit FakeDevice(FakeDeviceOptions options);
  ~FakeDevice() override;  // aborts the test if memory or streams are still alive

  // --- Control. ---
  // The next `times` calls of `op` return `status` at once and do nothing.
  void FailNext(FakeOp op, absl::Status status, int times = 1) ABSL_LOCKS_EXCLUDED(mutex_);
  // The next kCopyIn, kCopyOut or kLaunch to be queued fails when the stream gets to it: a sticky
  // error, as CUDA has them. The device is unhealthy from then on.
  void FailAsync(FakeOp op, absl::Status status) ABSL_LOCKS_EXCLUDED(mutex_);
  // A sticky error at once: every later call and everything still queued fails with `status`.
  void Die(absl::Status status) ABSL_LOCKS_EXCLUDED(mutex_);

  // Streams stop before `op` (kCopyIn, kCopyOut, kLaunch or kRecord) until Release, so that events
  // behind it are not reached: held for ever, it is a kernel that hangs. A stream that is destroyed
  // is released.
  void Hold(FakeOp op) ABSL_LOCKS_EXCLUDED(mutex_);
  void Release(FakeOp op) ABSL_LOCKS_EXCLUDED(mutex_);
  // Lets one stream pass once; the hold stays.
  void ReleaseOne(FakeOp op) ABSL_LOCKS_EXCLUDED(mutex_);
  // Blocks until `streams` streams at least are stopped before `op`.
  void AwaitHeld(FakeOp op, int streams = 1) ABSL_LOCKS_EXCLUDED(mutex_);

  // --- What happened. ---
  // Calls of `op`, also those that failed.
  int64_t calls(FakeOp op) const ABSL_LOCKS_EXCLUDED(mutex_);
  // Problems of each launch that was queued, in order.
  std::vector<int> batch_sizes() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Shapes of all problems queued, in order.
  std::vector<GemmShape> shapes() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Launches that computed.
  int64_t launches_done() const ABSL_LOCKS_EXCLUDED(mutex_);
  void AwaitLaunchesDone(int64_t count) ABSL_LOCKS_EXCLUDED(mutex_);
  // Bytes allocated now.
  size_t pinned_bytes() const ABSL_LOCKS_EXCLUDED(mutex_);
  size_t device_bytes() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Registered now.
  size_t registered_bytes() const ABSL_LOCKS_EXCLUDED(mutex_);

  // --- Device. ---
  const DeviceInfo& info() const override { return info_; }
  const PlanLimits& plan_limits() const override { return limits_; }
  bool healthy() const override ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<MemoryBlock> AllocatePinned(size_t bytes) override;
  absl::StatusOr<MemoryBlock> AllocateDevice(size_t bytes) override;
  absl::Status RegisterHost(void* data, size_t bytes) override;
  absl::Status UnregisterHost(void* data) override;
  absl::StatusOr<std::unique_ptr<Stream>> CreateStream() override;
  absl::StatusOr<std::unique_ptr<Event>> CreateEvent() override;
  absl::Status CopyIn(Stream& stream, const Copy2d& copy) override;
  absl::Status CopyOut(Stream& stream, const Copy2d& copy) override;
  absl::Status Launch(Stream& stream, const Plan& plan,
                      absl::Span<const GemmProblem> problems) override;
  absl::Status Record(Stream& stream, Event& event) override;
  // The stream's thread waits; a stream may go only when what it waits for is reached.
  absl::Status WaitFor(Stream& stream, Event& event) override;
  absl::Status Wait(Event& event, Nanos limit) override;
  absl::StatusOr<Nanos> Elapsed(Event& from, Event& to) override;

 private:
  class FakeStream;
  class FakeEvent;
  enum class MemoryKind { kPinned, kDevice, kRegistered };
  struct Allocation {
    size_t bytes;
    MemoryKind kind;
  };
  struct OpState {
    int64_t calls = 0;
    std::deque<absl::Status> failures;        // of the next calls
    std::deque<absl::Status> async_failures;  // of the next to be queued
    bool held = false;
    int passes = 0;   // that ReleaseOne gave
    int waiting = 0;  // streams stopped before it
  };

  // Counts the call; the error that it must return, or OK.
  absl::Status Begin(FakeOp op) ABSL_LOCKS_EXCLUDED(mutex_);
  // Queues `work`, which runs on the stream's thread unless `op` was told to fail there.
  void Enqueue(Stream& stream, FakeOp op, std::function<absl::Status()> work)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // What a stream's thread does with one piece of work.
  void Execute(FakeStream& stream, FakeOp op, const absl::Status& planned,
               const std::function<absl::Status()>& work) ABSL_LOCKS_EXCLUDED(mutex_);
  void StopWhileHeld(FakeStream& stream, OpState& state) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  absl::StatusOr<MemoryBlock> Allocate(size_t bytes, MemoryKind kind) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status CheckDeviceMemory(const void* data, size_t bytes, const char* what) const
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status CheckProblem(const GemmProblem& problem) const ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status RunCopy(const Copy2d& copy, bool in) const ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status RunLaunch(const Plan& plan, const std::vector<GemmProblem>& problems)
      ABSL_LOCKS_EXCLUDED(mutex_, compute_mutex_);

  OpState& op_state(FakeOp op) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return ops_[static_cast<int>(op)];
  }

  const FakeDeviceOptions options_;
  DeviceInfo info_;
  PlanLimits limits_;

  mutable Mutex mutex_;
  CondVar changed_;
  std::array<OpState, kFakeOps> ops_ ABSL_GUARDED_BY(mutex_);
  std::map<uintptr_t, Allocation> allocations_ ABSL_GUARDED_BY(mutex_);
  std::array<size_t, 3> allocated_bytes_ ABSL_GUARDED_BY(mutex_) = {};
  absl::Status sticky_ ABSL_GUARDED_BY(mutex_);
  std::mt19937_64 random_ ABSL_GUARDED_BY(mutex_);
  std::vector<int> batch_sizes_ ABSL_GUARDED_BY(mutex_);
  std::vector<GemmShape> shapes_ ABSL_GUARDED_BY(mutex_);
  int64_t launches_done_ ABSL_GUARDED_BY(mutex_) = 0;
  int live_streams_ ABSL_GUARDED_BY(mutex_) = 0;

  // The CPU device takes one launch at a time.
  Mutex compute_mutex_;
  std::unique_ptr<Device> cpu_ ABSL_PT_GUARDED_BY(compute_mutex_);
  std::unique_ptr<Stream> cpu_stream_;
};

}  // namespace tcgemm

#endif  // TCGEMM_TESTS_KERNELS_FAKE_DEVICE_H_
