#include "server/main/gpu_watch.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "server/main/failpoint.h"
#include "server/main/logging.h"
#include "server/telemetry/nvml_reader.h"

namespace tcgemm {
namespace {

// What a test's library is asked for where there is no GPU.
constexpr char kNoGpuPciId[] = "0000:00:00.0";

void LogChange(const absl::Status& status) {
  if (status.ok()) {
    Log(LogLevel::kInfo, "GPU telemetry works again");
    return;
  }
  // A GPU without NVML serves as well as any; one that stopped answering may not for long.
  Log(absl::IsNotFound(status) ? LogLevel::kInfo : LogLevel::kWarning,
      absl::StrCat("no GPU telemetry: ", std::string(status.message())));
}

}  // namespace

std::unique_ptr<GpuTelemetry> StartGpuTelemetry(const DeviceInfo& device, Nanos patience) {
  NvmlOptions nvml = {.pci_id = device.pci_id};
  const absl::StatusOr<Failpoint> failpoint = FailpointFromEnvironment();
  if (failpoint.ok() && failpoint->kind == Failpoint::Kind::kNvml) {
    nvml.library = failpoint->nvml_library;
    if (nvml.pci_id.empty()) nvml.pci_id = kNoGpuPciId;
  }
  if (nvml.pci_id.empty()) return nullptr;
  auto telemetry = std::make_unique<GpuTelemetry>([nvml] { return OpenNvml(nvml); }, Clock::Real(),
                                                  GpuTelemetryOptions{.on_change = LogChange});
  if (!telemetry->WaitForFirst(patience)) {
    Log(LogLevel::kWarning,
        absl::StrCat("no GPU telemetry: NVML has not answered within ",
                     patience / std::chrono::milliseconds(1), " ms: it may hang"));
  }
  return telemetry;
}

}  // namespace tcgemm
