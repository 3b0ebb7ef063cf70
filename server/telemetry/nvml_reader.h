// NVML, NVIDIA's management library, as a GpuReader. It comes with the driver, so it is loaded at
// run time and never linked.
#ifndef TCGEMM_SERVER_TELEMETRY_NVML_READER_H_
#define TCGEMM_SERVER_TELEMETRY_NVML_READER_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/telemetry/gpu_reading.h"

namespace tcgemm {

// What the dynamic linker finds where there is a driver.
inline constexpr char kNvmlLibrary[] = "libnvidia-ml.so.1";

struct NvmlOptions {
  std::string library = kNvmlLibrary;
  // "0000:0f:00.0". By bus and not by number: NVML knows nothing of CUDA_VISIBLE_DEVICES and counts
  // in another order. A MIG instance has the bus of its GPU, and so the GPU's numbers.
  std::string pci_id;
};

// Loads the library and finds the device. NOT_FOUND without a library that has NVML's functions;
// UNAVAILABLE when NVML does not start or does not know the device, with its own words. A field
// that the device does not support is not in its readings; without events there are no Xids.
absl::StatusOr<std::unique_ptr<GpuReader>> OpenNvml(const NvmlOptions& options);

}  // namespace tcgemm

#endif  // TCGEMM_SERVER_TELEMETRY_NVML_READER_H_
