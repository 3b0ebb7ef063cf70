// What is known of the GPU at a given time: the last reading while it is fresh, and what has been
// counted. Policy without threads; the time is passed in.
#ifndef TCGEMM_SERVER_TELEMETRY_GPU_ACCOUNT_H_
#define TCGEMM_SERVER_TELEMETRY_GPU_ACCOUNT_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "server/telemetry/gpu_reading.h"

namespace tcgemm {

struct GpuSnapshot {
  bool up = false;     // the reading is fresh
  GpuReading reading;  // empty while not up
  // Since the first reading; they stay when the GPU does not answer any more.
  uint64_t ecc_corrected = 0;
  uint64_t ecc_uncorrected = 0;
  uint64_t xid_errors = 0;
  uint64_t last_xid = 0;  // 0: none
};

// One thread at a time.
class GpuAccount {
 public:
  // A reading is fresh for `stale_after`.
  explicit GpuAccount(Nanos stale_after) : stale_after_(stale_after) {}

  // `at`: when the question was asked, so that a slow answer is as old as it is.
  void OnReading(const GpuReading& reading, TimePoint at);
  // The GPU did not answer.
  void OnFailure() { last_.reset(); }
  void OnXids(const std::vector<uint64_t>& xids);

  GpuSnapshot At(TimePoint now) const;

 private:
  // Counts what the device's own counter grew by. The first value is where it starts: errors from
  // before this process are not its own, and would look like new ones.
  class Growth {
   public:
    void To(std::optional<uint64_t> value);
    uint64_t total() const { return total_; }

   private:
    std::optional<uint64_t> seen_;
    uint64_t total_ = 0;
  };
  struct Last {
    GpuReading reading;
    TimePoint at;
  };

  const Nanos stale_after_;
  std::optional<Last> last_;
  Growth ecc_corrected_;
  Growth ecc_uncorrected_;
  uint64_t xid_errors_ = 0;
  uint64_t last_xid_ = 0;
};

}  // namespace tcgemm

#endif  // TCGEMM_SERVER_TELEMETRY_GPU_ACCOUNT_H_
