#include "server/telemetry/gpu_account.h"

namespace tcgemm {

const char* ThrottleReasonName(ThrottleReason reason) {
  switch (reason) {
    case ThrottleReason::kIdle:
      return "idle";
    case ThrottleReason::kApplicationClocks:
      return "application_clocks";
    case ThrottleReason::kSwPowerCap:
      return "sw_power_cap";
    case ThrottleReason::kHwSlowdown:
      return "hw_slowdown";
    case ThrottleReason::kSyncBoost:
      return "sync_boost";
    case ThrottleReason::kSwThermal:
      return "sw_thermal";
    case ThrottleReason::kHwThermal:
      return "hw_thermal";
    case ThrottleReason::kHwPowerBrake:
      return "hw_power_brake";
    case ThrottleReason::kDisplayClocks:
      return "display_clocks";
  }
  return "unknown";
}

void GpuAccount::Growth::To(std::optional<uint64_t> value) {
  if (!value.has_value()) return;
  // Less than before: the driver was loaded again and began at 0.
  if (seen_.has_value()) total_ += *value >= *seen_ ? *value - *seen_ : *value;
  seen_ = value;
}

void GpuAccount::OnReading(const GpuReading& reading, TimePoint at) {
  last_ = Last{.reading = reading, .at = at};
  ecc_corrected_.To(reading.ecc_corrected);
  ecc_uncorrected_.To(reading.ecc_uncorrected);
}

void GpuAccount::OnXids(const std::vector<uint64_t>& xids) {
  xid_errors_ += xids.size();
  if (!xids.empty()) last_xid_ = xids.back();
}

GpuSnapshot GpuAccount::At(TimePoint now) const {
  GpuSnapshot snapshot = {.ecc_corrected = ecc_corrected_.total(),
                          .ecc_uncorrected = ecc_uncorrected_.total(),
                          .xid_errors = xid_errors_,
                          .last_xid = last_xid_};
  if (last_.has_value() && now - last_->at <= stale_after_) {
    snapshot.up = true;
    snapshot.reading = last_->reading;
  }
  return snapshot;
}

}  // namespace tcgemm
