// When is a batch overdue? Policy alone: no thread, no clock.
//
// Predicted = FLOPs / the device's flops_per_second + bytes of operands and results at 4 GB/s (a
// slow bus; and no kernel reads its operands more slowly), for all batches in flight together,
// since they share the device. A batch is overdue when it has not ended after the longer of the
// minimum and 50 times that: far above any slowness (throttling, a neighbour on the GPU, a shape
// that fills one multiprocessor), so that only what hangs is caught.
#ifndef TCGEMM_SERVER_ENGINE_WATCHDOG_H_
#define TCGEMM_SERVER_ENGINE_WATCHDOG_H_

#include "base/clock.h"

namespace tcgemm {

struct BatchWork {
  double flops = 0;
  double bytes = 0;             // of operands and results
  double flops_per_second = 0;  // of the device, > 0
};

// At most 24 h.
Nanos PredictedTime(const BatchWork& work);

struct WatchdogTimes {
  Nanos minimum{0};    // --watchdog-min
  Nanos predicted{0};  // of all batches in flight
};

// At most 50 days.
Nanos WatchdogLimit(const WatchdogTimes& times);

}  // namespace tcgemm

#endif  // TCGEMM_SERVER_ENGINE_WATCHDOG_H_
