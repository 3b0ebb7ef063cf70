// One product on its way through the engine.
#ifndef TCGEMM_SERVER_ENGINE_JOB_H_
#define TCGEMM_SERVER_ENGINE_JOB_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "base/clock.h"
#include "kernels/gemm.h"
#include "server/engine/buffer_pool.h"
#include "server/engine/caller.h"
#include "server/engine/resident_matrix.h"
#include "server/engine/shared_region.h"
#include "server/engine/slab.h"

namespace tcgemm {

using JobId = uint64_t;

struct JobTimings {
  Nanos queue{0};
  Nanos copy_in{0};
  Nanos kernel{0};  // of the whole launch
  Nanos copy_out{0};
};

// What `done` gets. `memory` is the job's own lease, handed back with D filled in when the status
// is OK; the other fields are meaningful only then. It is empty when the device has hung and may
// still write there: such memory stays out of the pool while the process lives.
struct JobOutcome {
  absl::Status status;
  Lease memory;
  JobTimings timings;
  std::string kernel;
  double tflops = 0;     // of the launch: FLOPs of the whole batch / kernel time
  int batched_with = 0;  // other jobs in the launch
};

// The matrices of a job that stay on the server; null for those that lie in its own memory.
struct JobResidents {
  ResidentRef a;
  ResidentRef b;
  ResidentRef c;
  ResidentRef bias;
  ResidentRef d;

  OnDevice on_device() const {
    return {.a = a != nullptr,
            .b = b != nullptr,
            .c = c != nullptr,
            .bias = bias != nullptr,
            .d = d != nullptr};
  }
};

// The shared-memory regions that matrices of a job lie in; null for those that lie elsewhere.
struct JobRegions {
  SharedRegionRef a;
  SharedRegionRef b;
  SharedRegionRef d;

  bool any() const { return a != nullptr || b != nullptr || d != nullptr; }
  // What lies between two of the operands is the job's own: they all lie in its lease, or A and B
  // in one region and nothing else is read.
  bool operands_in_one_memory(const Epilogue& epilogue) const {
    if (a == nullptr && b == nullptr) return true;
    return a == b && !epilogue.reads_c() && !epilogue.has_bias();
  }
};

struct Job {
  Caller caller;
  // Each matrix lies inside `memory` (host pointers) or one of `regions`, or is the view of one of
  // `residents`.
  GemmProblem problem;
  // Kept until the device is done. Operands must be complete; D must be written by nobody else.
  JobResidents residents;
  // The same; but their bytes may change at any time.
  JobRegions regions;
  Lease memory;
  TimePoint deadline = kInfiniteFuture;
  // K may be split (GemmProblem::workspace, which the worker fills in). Such a job shares its
  // launch with no other, so that its bits are a function of the product and the server's memory.
  bool fastest = false;
  // A part of a call that was let in: no limit of the queue refuses it. How many there are is its
  // caller's to bound.
  bool admitted = false;
  // Called exactly once per job that Submit accepted, from an engine thread, from the thread that
  // cancelled, or with EngineOptions.direct_submit from the one that submits, before Submit
  // returns; with no engine lock held. It must only enqueue: no blocking, no large copies.
  std::function<void(JobOutcome)> done;
};

}  // namespace tcgemm

#endif  // TCGEMM_SERVER_ENGINE_JOB_H_
