// Which machine multiplies: --device, --cpu-backend and --cpu-threads, and what is there.
#ifndef TCGEMM_SERVER_MAIN_CHOOSE_DEVICE_H_
#define TCGEMM_SERVER_MAIN_CHOOSE_DEVICE_H_

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/device.h"
#include "server/main/options.h"

namespace tcgemm {

// The GPUs of this machine, as far as this build can use them.
struct GpuBackend {
  // OK when GPU `ordinal` can serve, else why not, in words.
  std::function<absl::Status(int ordinal)> usable;
  std::function<absl::StatusOr<std::unique_ptr<Device>>(int ordinal)> create;
};
GpuBackend BuiltInGpuBackend();

// "cpu": the CPU. "cuda", "cuda:N": that GPU (0 without N), or FAILED_PRECONDITION with the flag
// and the reason. "auto": GPU 0 if it is usable; else the CPU, with one line in the log that says
// why. What TCGEMM_FAILPOINT asks for is around it (server/main/failpoint.h); INVALID_ARGUMENT when
// that cannot be read. Otherwise the device's own errors.
absl::StatusOr<std::unique_ptr<Device>> CreateDevice(const ServerOptions& options);
absl::StatusOr<std::unique_ptr<Device>> ChooseDevice(const ServerOptions& options,
                                                     const GpuBackend& gpus);

}  // namespace tcgemm

#endif  // TCGEMM_SERVER_MAIN_CHOOSE_DEVICE_H_
