// Which jobs may run on the thread that submits them: policy alone.
//
// Between a lone small job and its product lie two wake-ups of the device's threads, each of some
// ten microseconds, which is more than the product takes. A job that finds the device idle and
// nothing waiting is therefore submitted by its caller, who then waits for it a little while
// (docs/adr/0021). What takes longer goes to the threads: callers are gRPC's.
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

// True for what should be over within kDirectSpin.
inline bool MayRunDirectly(const DirectWork& work) {
  return work.bytes <= kMostDirectBytes &&
         work.flops <= work.flops_per_second * std::chrono::duration<double>(kDirectSpin).count();
}

}  // namespace tcgemm

#endif  // TCGEMM_SERVER_ENGINE_DIRECT_SUBMIT_H_
