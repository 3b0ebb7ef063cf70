// The door to a machine that multiplies: a GPU, the CPU, or the fake of the tests.
//
// A stream is a queue of copies and launches that run in order; an event marks a point in it. The
// CPU device runs everything inside the call that asks for it, so its events are complete at once.
//
// Threads: a Device may be used from several threads as long as no two use one Stream at once.
// Ownership: streams, events and memory must be gone before their Device is.
// Errors: INTERNAL for a failed device operation, with the expression and the place. After a
// sticky error (CUDA context lost) every later call fails too and healthy() is false.
#ifndef TCGEMM_KERNELS_DEVICE_H_
#define TCGEMM_KERNELS_DEVICE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "kernels/gemm.h"
#include "kernels/plan.h"

namespace tcgemm {

// An allocation that frees itself. Move-only.
class MemoryBlock {
 public:
  using Free = std::function<void(void*)>;

  MemoryBlock() = default;
  MemoryBlock(void* data, size_t bytes, Free free) : bytes_(bytes), data_(data, std::move(free)) {}
  std::byte* data() const { return static_cast<std::byte*>(data_.get()); }
  size_t bytes() const { return bytes_; }

 private:
  size_t bytes_ = 0;
  std::unique_ptr<void, Free> data_{nullptr, [](void*) {}};
};

struct DeviceInfo {
  std::string name;         // "cpu" or "cuda:N", as in the READY line and metric labels
  std::string description;  // for people: chip, instruction set, threads
  std::string backend;      // "onednn", "plain", "cuda", "fake"
  // Pinned memory is device memory: the engine allocates no device slabs and skips both copies.
  bool unified_memory = false;
  // Launch takes pinned host memory too: the GPU reads and writes it over its bus. Right for a few
  // KiB, for which a copy costs more than the bytes; anything read twice travels twice.
  bool reads_pinned = false;
  // Row pitch, in elements, that operands must have in device memory (and so in host slabs).
  int64_t pitch_alignment = 1;
  // Measured or known sustained rate, for admission and the watchdog; > 0.
  double flops_per_second = 0;
  // Node of the host's memory nearest to a GPU; -1: unknown, or there is one node.
  int numa_node = -1;
  // Where a GPU is on the PCI bus, "0000:0f:00.0"; a MIG instance is where its GPU is. "" without
  // one.
  std::string pci_id;
};

// Lookups of a tensor map that Launch needed.
struct TensorMapCounts {
  int64_t hits = 0;
  int64_t misses = 0;  // and so encoded
};

class Stream {
 public:
  virtual ~Stream() = default;
};

class Event {
 public:
  virtual ~Event() = default;
};

// `rows` rows of `row_bytes`, pitches in bytes. Pitch 0 with rows = 1 is allowed. Between rows the
// destination's bytes may change when both pitches are equal: one straight copy is faster.
struct Copy2d {
  void* destination = nullptr;
  const void* source = nullptr;
  size_t destination_pitch = 0;
  size_t source_pitch = 0;
  size_t row_bytes = 0;
  int64_t rows = 0;
};

class Device {
 public:
  virtual ~Device() = default;

  virtual const DeviceInfo& info() const = 0;
  virtual const PlanLimits& plan_limits() const = 0;
  virtual bool healthy() const = 0;

  // Both touch every page, so that serving never faults them in. 4 KiB aligned.
  // RESOURCE_EXHAUSTED when the memory is not there.
  virtual absl::StatusOr<MemoryBlock> AllocatePinned(size_t bytes) = 0;
  virtual absl::StatusOr<MemoryBlock> AllocateDevice(size_t bytes) = 0;

  // Host memory that may never be used, with unified memory: what copies and launches take, 4 KiB
  // aligned and zeroed, and where the device can do so, its pages come with their first use.
  // RESOURCE_EXHAUSTED when the memory is not there now; who uses it later counts on a budget.
  virtual absl::StatusOr<MemoryBlock> AllocateForLater(size_t bytes) {
    return AllocatePinned(bytes);
  }

  // Whole pages of host memory that the caller has mapped become memory that copies reach without a
  // stop on the way, until they are unregistered; they stay mapped that long. Both calls may take a
  // second for some GiB, and may wait for the device: not for a serving thread. Unregister when no
  // copy touches the memory any more. With unified memory there is nothing to do.
  // RESOURCE_EXHAUSTED when the pages cannot be pinned.
  virtual absl::Status RegisterHost(void* /*data*/, size_t /*bytes*/) { return absl::OkStatus(); }
  virtual absl::Status UnregisterHost(void* /*data*/) { return absl::OkStatus(); }

  virtual absl::StatusOr<std::unique_ptr<Stream>> CreateStream() = 0;
  virtual absl::StatusOr<std::unique_ptr<Event>> CreateEvent() = 0;

  virtual absl::Status CopyIn(Stream& stream, const Copy2d& copy) = 0;
  virtual absl::Status CopyOut(Stream& stream, const Copy2d& copy) = 0;
  // One launch for all `problems`, whose pointers are device memory. D must not overlap an operand
  // nor another D. Everything passed by reference may be gone after the call returns.
  virtual absl::Status Launch(Stream& stream, const Plan& plan,
                              absl::Span<const GemmProblem> problems) = 0;

  virtual absl::Status Record(Stream& stream, Event& event) = 0;
  // What `stream` is asked for from now on starts once the event, recorded on another stream, is
  // reached. Nothing to do where everything runs inside the call that asks for it.
  virtual absl::Status WaitFor(Stream& /*stream*/, Event& /*event*/) { return absl::OkStatus(); }
  // Blocks until the event's point is reached; the error, if the work before it failed.
  // DEADLINE_EXCEEDED when it is not reached after `limit`: the work may still be running then.
  virtual absl::Status Wait(Event& event, Nanos limit) = 0;
  // Time between two recorded and reached events.
  virtual absl::StatusOr<Nanos> Elapsed(Event& from, Event& to) = 0;

  // Since the device was created. Zeros on a device without tensor maps.
  virtual TensorMapCounts tensor_map_counts() const { return {}; }
};

}  // namespace tcgemm

#endif  // TCGEMM_KERNELS_DEVICE_H_
