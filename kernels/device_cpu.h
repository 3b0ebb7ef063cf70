// The CPU as a Device: every operation runs inside the call. See device.h for the contract.
#ifndef TCGEMM_KERNELS_DEVICE_CPU_H_
#define TCGEMM_KERNELS_DEVICE_CPU_H_

#include <memory>

#include "absl/status/statusor.h"
#include "base/thread_pool.h"
#include "kernels/device.h"

namespace tcgemm {

enum class CpuBackend {
  kAuto,    // oneDNN when built in and fit for this CPU, else plain: info().backend says which
  kOnednn,  // UNIMPLEMENTED when this build has none, or its bits would depend on M here
  kPlain,
};

// `runner` gives the threads (kernels/ owns none); its width is fixed for the device's life, and
// the bits do not depend on it. Launches must not run at once, as a runner takes one loop at a
// time. oneDNN honours ONEDNN_MAX_CPU_ISA.
absl::StatusOr<std::unique_ptr<Device>> CreateCpuDevice(CpuBackend backend,
                                                        std::unique_ptr<ParallelRunner> runner);

}  // namespace tcgemm

#endif  // TCGEMM_KERNELS_DEVICE_CPU_H_
