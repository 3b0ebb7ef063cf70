// What a GPU tells about itself, and who asks it. NVML is behind OpenNvml (nvml_reader.h), the fake
// of the tests behind the same interface.
#ifndef TCGEMM_SERVER_TELEMETRY_GPU_READING_H_
#define TCGEMM_SERVER_TELEMETRY_GPU_READING_H_

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"

namespace tcgemm {

// Why the clocks are lower than they could be, in the order of NVML's bits.
enum class ThrottleReason {
  kIdle,
  kApplicationClocks,
  kSwPowerCap,
  kHwSlowdown,
  kSyncBoost,
  kSwThermal,
  kHwThermal,
  kHwPowerBrake,
  kDisplayClocks,
};
inline constexpr int kThrottleReasonCount = 9;

// "idle", "sw_power_cap", …: the values of the label.
const char* ThrottleReasonName(ThrottleReason reason);

// One look at the whole GPU, all processes on it included. What a device does not tell is not
// there: a 0 would say something else.
struct GpuReading {
  std::optional<double> utilization;  // share of the last sample period with a kernel running, 0..1
  std::optional<double> memory_used_bytes;  // of everybody, the driver's own included
  std::optional<double> memory_total_bytes;
  std::optional<double> power_watts;
  std::optional<double> power_limit_watts;  // the one in force
  std::optional<double> sm_clock_hertz;
  std::optional<double> max_sm_clock_hertz;
  std::optional<double> temperature_celsius;
  std::optional<std::array<bool, kThrottleReasonCount>> throttle;  // by ThrottleReason
  // Since the driver was loaded; smaller than before after it was loaded again.
  std::optional<uint64_t> ecc_corrected;
  std::optional<uint64_t> ecc_uncorrected;
};

// One thread at a time. Any call, and the destructor, may take long or never return: a GPU that has
// fallen off its bus hangs whoever asks the driver.
class GpuReader {
 public:
  virtual ~GpuReader() = default;

  // The Xid errors since the last call or since the reader was opened, oldest first. Some that come
  // at the same moment may be told as one.
  virtual absl::StatusOr<std::vector<uint64_t>> TakeXids() = 0;
  // UNAVAILABLE when the device does not answer any more; this reader will not again.
  virtual absl::StatusOr<GpuReading> Read() = 0;
};

// NOT_FOUND: this machine has no telemetry, and will not have it later. Any other error may pass.
using OpenGpuReader = std::function<absl::StatusOr<std::unique_ptr<GpuReader>>()>;

}  // namespace tcgemm

#endif  // TCGEMM_SERVER_TELEMETRY_GPU_READING_H_
