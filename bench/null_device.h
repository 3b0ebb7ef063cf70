// A Device that computes nothing: what is left of a request is the road.
#ifndef TCGEMM_BENCH_NULL_DEVICE_H_
#define TCGEMM_BENCH_NULL_DEVICE_H_

#include <memory>

#include "kernels/device.h"

namespace tcgemm {

// Unified memory; launches succeed and leave D as it is.
std::unique_ptr<Device> CreateNullDevice();

}  // namespace tcgemm

#endif  // TCGEMM_BENCH_NULL_DEVICE_H_
