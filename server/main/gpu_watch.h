// Which GPU's telemetry the server watches, and what its log says of it.
#ifndef TCGEMM_SERVER_MAIN_GPU_WATCH_H_
#define TCGEMM_SERVER_MAIN_GPU_WATCH_H_

#include <memory>

#include "kernels/device.h"
#include "server/telemetry/gpu_telemetry.h"

namespace tcgemm {

// Watches the GPU of `device` through NVML, or through the library of the failpoint nvml:/path,
// which also stands in where there is no GPU. Null, and silence, where there is neither. The log
// says once why there is no telemetry, and when it comes again. Returns after the first answer or
// after `patience`: a driver that hangs is said, too, and left to itself. It may hang while its
// library is loaded, and then nobody else can load one: start it last.
std::unique_ptr<GpuTelemetry> StartGpuTelemetry(const DeviceInfo& device,
                                                Nanos patience = std::chrono::seconds(2));

}  // namespace tcgemm

#endif  // TCGEMM_SERVER_MAIN_GPU_WATCH_H_
