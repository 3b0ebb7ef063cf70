#include "server/main/choose_device.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/thread_pool.h"
#include "kernels/device_cpu.h"
#include "server/engine/cpu_limit.h"
#include "server/main/failpoint.h"
#include "server/main/logging.h"
#ifdef TCGEMM_CUDA
#include "kernels/device_cuda.h"
#endif

namespace tcgemm {
namespace {

absl::StatusOr<std::unique_ptr<Device>> ChooseCpu(const ServerOptions& options) {
  CpuBackend backend = CpuBackend::kAuto;
  if (options.cpu_backend == "onednn") backend = CpuBackend::kOnednn;
  if (options.cpu_backend == "plain") backend = CpuBackend::kPlain;
  const int threads = options.cpu_threads > 0 ? options.cpu_threads : UsableCores(RealFileReader());
  return CreateCpuDevice(backend, std::make_unique<PoolRunner>(threads));
}

absl::StatusOr<std::unique_ptr<Device>> ChooseGpu(int ordinal, const GpuBackend& gpus) {
  TCGEMM_RETURN_IF_ERROR(gpus.usable(ordinal));
  return gpus.create(ordinal);
}

// "cuda" or "cuda:N", as the options were checked.
absl::StatusOr<int> OrdinalOf(const std::string& device) {
  constexpr size_t kPrefix = 5;  // "cuda:"
  int ordinal = 0;
  if (device.size() > kPrefix && !absl::SimpleAtoi(device.substr(kPrefix), &ordinal)) {
    return absl::FailedPreconditionError("there are not that many GPUs");
  }
  return ordinal;
}

}  // namespace

GpuBackend BuiltInGpuBackend() {
#ifdef TCGEMM_CUDA
  return {.usable = CudaDeviceUsable,
          .create = [](int ordinal) { return CreateCudaDevice(ordinal); }};
#else
  const absl::Status none = absl::FailedPreconditionError("this build has no GPU backend");
  return {.usable = [none](int) { return none; },
          .create = [none](int) -> absl::StatusOr<std::unique_ptr<Device>> { return none; }};
#endif
}

absl::StatusOr<std::unique_ptr<Device>> ChooseDevice(const ServerOptions& options,
                                                     const GpuBackend& gpus) {
  if (options.device == "cpu") return ChooseCpu(options);
  if (options.device == "auto") {
    absl::StatusOr<std::unique_ptr<Device>> gpu = ChooseGpu(0, gpus);
    if (gpu.ok()) return gpu;
    Log(LogLevel::kInfo, absl::StrCat("running on the CPU: ", std::string(gpu.status().message())));
    return ChooseCpu(options);
  }
  absl::StatusOr<int> ordinal = OrdinalOf(options.device);
  absl::StatusOr<std::unique_ptr<Device>> gpu =
      ordinal.ok() ? ChooseGpu(*ordinal, gpus) : ordinal.status();
  if (gpu.ok()) return gpu;
  return absl::Status(gpu.status().code(), absl::StrCat("--device ", options.device, ": ",
                                                        std::string(gpu.status().message()),
                                                        "; --device cpu needs no GPU"));
}

absl::StatusOr<std::unique_ptr<Device>> CreateDevice(const ServerOptions& options) {
  TCGEMM_ASSIGN_OR_RETURN(const Failpoint failpoint, FailpointFromEnvironment());
  TCGEMM_ASSIGN_OR_RETURN(std::unique_ptr<Device> device,
                          ChooseDevice(options, BuiltInGpuBackend()));
  return WithFailpoint(failpoint, std::move(device));
}

}  // namespace tcgemm
