// The engine: admission, batching and the device, behind three calls.
//
// Threads: every method may be called from any thread. Each device has one submit thread and one
// completion thread; one more thread ends jobs whose deadline passes while they wait. `done`
// callbacks run on them, or on the thread that cancelled.
#ifndef TCGEMM_SERVER_ENGINE_ENGINE_H_
#define TCGEMM_SERVER_ENGINE_ENGINE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "kernels/device.h"
#include "server/engine/buffer_pool.h"
#include "server/engine/caller.h"
#include "server/engine/engine_events.h"
#include "server/engine/fatal.h"
#include "server/engine/in_place.h"
#include "server/engine/job.h"
#include "server/engine/resident_store.h"
#include "server/engine/resident_transfers.h"
#include "server/engine/shared_region_store.h"

namespace tcgemm {

struct EngineOptions {
  int max_batch = 64;        // jobs in one launch, 1 … plan_limits().max_problems of the device
  Nanos max_queue_delay{0};  // how long a job may wait for company, ≥ 0; 0 adds no wait
  size_t pinned_bytes = 0;   // the host pool: operands and results of requests; ≥ 4096
  // Device memory of the ring, shared out evenly over the slots; unused with unified memory. A
  // product must fit one slot: its operands and its result, rows padded to the device's pitch.
  size_t device_bytes = 0;
  // Memory of matrices that stay: device memory, or host memory on a device with unified memory.
  size_t resident_bytes = 0;
  size_t resident_bytes_per_caller = 0;  // of those, for one caller; 0: all
  // Host memory that callers share with the engine (server/engine/shared_region.h); 0: none may.
  SharedRegionLimits shared;
  int64_t max_queue_jobs = 4096;  // ≥ 1
  // Work that may wait, in seconds of the device's flops_per_second, > 0. One job larger than that
  // is still accepted when the queue is empty.
  double max_queue_seconds = 60;
  // Operand and result bytes that may wait, with the same exception; 0: as many as pinned_bytes.
  size_t queue_bytes = 0;
  // Batches of at most this many bytes are not copied to a device that reads pinned memory.
  size_t in_place_bytes = kDefaultInPlaceBytes;
  int slots = 3;  // batches in flight, 1 … 16: copy-in, compute and copy-out overlap
  // A small job that finds the device idle and nothing waiting runs on the thread that submits it,
  // which may call `done` before Submit returns (server/engine/direct_submit.h). Needs two slots.
  bool direct_submit = false;
  // No batch is overdue before this, > 0; when it is: server/engine/watchdog.h.
  Nanos watchdog_min = std::chrono::seconds(1);
  // Called once, from an engine thread with no lock held, when the device is lost or has hung: the
  // engine then serves nothing more, and the process should end (exit code 5 or 7). It must only
  // signal. May be null.
  std::function<void(const FatalError&)> on_fatal;
};

struct EngineBatching {
  int max_batch = 64;
  Nanos max_queue_delay{0};
};

class Engine {
 public:
  // Allocates every budget and tells OnDeviceHealth(true). The clock and the events must outlive
  // the engine. INVALID_ARGUMENT, naming it, for an option out of its range; RESOURCE_EXHAUSTED
  // when a budget does not fit the container's memory limit (server/engine/memory_limit.h) or the
  // device; otherwise the device's own errors.
  static absl::StatusOr<std::unique_ptr<Engine>> Create(const EngineOptions& options,
                                                        std::unique_ptr<Device> device,
                                                        const Clock* clock, EngineEvents* events);
  // Refuses new jobs, ends those that wait with UNAVAILABLE, lets those that run end as usual, and
  // joins. Every lease of host_pool() must be back when it returns: the jobs' are, unless a `done`
  // keeps its own. To lose nothing: Drain, then wait for pending_jobs() to be 0.
  // When the device has hung, what it may still use (its memory, the pool, itself) is not released:
  // that would wait for the device.
  virtual ~Engine() = default;

  // Multiplies known matrices through the whole path and compares with the reference. INTERNAL when
  // the device computes wrongly. Call once, before the first Submit.
  virtual absl::Status SelfTest() = 0;

  // May a call that just arrived come in, before its payload is read? UNAVAILABLE when draining or
  // unhealthy; RESOURCE_EXHAUSTED when the queue is full. Reserves nothing.
  virtual absl::Status Admit(const Caller& caller) = 0;

  // Queues the job. On an error `job.done` is not called and the job is gone: UNAVAILABLE when
  // draining or unhealthy, RESOURCE_EXHAUSTED when a queue limit is reached and the job is not
  // `admitted`, DEADLINE_EXCEEDED when the deadline has passed, INVALID_ARGUMENT from
  // ValidateProblem or, naming the limit, when the product does not fit a slot of the device. It
  // allocates no device or pinned memory, and waits for nothing but, with direct_submit, a small
  // job of its own. D's memory must overlap nothing else.
  // problem.nonfinite may be null; else it is set to 1 before done when D holds a NaN or Inf.
  virtual absl::StatusOr<JobId> Submit(Job job) = 0;

  // If the job still waits: drops it, calls its done with `why`, returns true. If it runs or has
  // ended: false; a running job ends as usual, with its done.
  virtual bool Cancel(JobId id, absl::Status why) = 0;

  // From the next batch on. INVALID_ARGUMENT, naming the option, when max_batch is not from 1 to
  // options().max_batch, which is what slots were made for, or the delay is negative or above 60 s.
  virtual absl::Status SetBatching(const EngineBatching& batching) = 0;
  virtual EngineBatching batching() const = 0;  // as set last

  // Refuses new jobs from now on; those accepted finish. Returns at once; idempotent.
  virtual void Drain() = 0;
  // Jobs accepted whose done has not returned yet.
  virtual int64_t pending_jobs() const = 0;

  virtual BufferPool& host_pool() = 0;
  // Every ResidentRef must be gone before the engine, as every lease.
  virtual ResidentStore& residents() = 0;
  virtual ResidentTransfers& transfers() = 0;
  // Every SharedRegionRef too.
  virtual SharedRegionStore& regions() = 0;
  virtual const DeviceInfo& device_info() const = 0;
  // What the device may be asked to run, best first.
  virtual const std::vector<KernelId>& kernels() const = 0;
  virtual const EngineOptions& options() const = 0;
  // What the matrices of one job may take of a slot, as SlabBytes counts; SIZE_MAX with unified
  // memory.
  virtual size_t slab_capacity() const = 0;
  // False once the device is lost or has hung: it stays so. Jobs in flight ended with INTERNAL
  // then, those that waited with UNAVAILABLE.
  virtual bool healthy() const = 0;
};

}  // namespace tcgemm

#endif  // TCGEMM_SERVER_ENGINE_ENGINE_H_
