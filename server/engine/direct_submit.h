// Which jobs their submitters ask the device for, and which they wait for: policy alone.
//
// Between a lone job and its product lie two wake-ups of the device's threads, each of some ten
// microseconds: more than a small product takes. A job that finds the device idle and nothing
// waiting is therefore submitted by its caller, where that takes no longer than the calls; and who
// submitted a small one waits for it a little while (docs/adr/0021).
#ifndef TCGEMM_SERVER_ENGINE_DIRECT_SUBMIT_H_
#define TCGEMM_SERVER_ENGINE_DIRECT_SUBMIT_H_

#include <cstddef>

#include "base/clock.h"

namespace tcgemm {

// How long a caller asks for the end of its job before the completion thread does: as long as a
// wait spins before it sleeps (kernels/poll.h).
inline constexpr Nanos kDirectSpin = std::chrono::microseconds(50);
// 20 µs of a bus of 50 GB/s.
inline constexpr size_t kMostDirectBytes = size_t{1} << 20;

struct DirectWork {
  double flops = 0;
  double flops_per_second = 0;  // of the device, > 0
  size_t bytes = 0;             // that do not lie on the device
};

// How long to wait for such a job: kDirectSpin for what should be over by then, else not at all.
inline Nanos DirectSpin(const DirectWork& work) {
  const bool small =
      work.bytes <= kMostDirectBytes &&
      work.flops <= work.flops_per_second * std::chrono::duration<double>(kDirectSpin).count();
  return small ? kDirectSpin : Nanos(0);
}

// A device that computes inside Launch would hold a caller up for as long as the product takes.
inline bool MaySubmitDirectly(Nanos spin, bool computes_inside_launch) {
  return spin > Nanos(0) || !computes_inside_launch;
}

}  // namespace tcgemm

#endif  // TCGEMM_SERVER_ENGINE_DIRECT_SUBMIT_H_
