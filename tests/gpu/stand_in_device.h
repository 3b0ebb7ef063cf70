// The device that the GPU tests run on.
#ifndef TCGEMM_TESTS_GPU_STAND_IN_DEVICE_H_
#define TCGEMM_TESTS_GPU_STAND_IN_DEVICE_H_

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/device.h"

namespace tcgemm {

// The first GPU; with TCGEMM_GPU_TEST_STAND_IN=1 a stand-in instead, so that a machine without a
// GPU can test these tests: whatever plan it gets, the plain CPU kernel computes. An error when
// there is no GPU.
absl::StatusOr<std::unique_ptr<Device>> CreateDeviceUnderTest();
bool IsStandIn();

}  // namespace tcgemm

#endif  // TCGEMM_TESTS_GPU_STAND_IN_DEVICE_H_
