// What a plan may use on an H200, for tests on a machine without one.
#ifndef TCGEMM_TESTS_KERNELS_H200_LIMITS_H_
#define TCGEMM_TESTS_KERNELS_H200_LIMITS_H_

#include "kernels/plan.h"

namespace tcgemm {

inline PlanLimits H200() {
  PlanLimits limits;
  limits.kernels = {KernelId::kTmaWgmma, KernelId::kTmaMma, KernelId::kCpAsyncMma};
  limits.max_problems = 96;
  limits.compute_capability = 90;
  limits.multiprocessors = 132;
  limits.shared_bytes_per_block = 227 * 1024;
  limits.shared_bytes_per_multiprocessor = 228 * 1024;
  return limits;
}

}  // namespace tcgemm

#endif  // TCGEMM_TESTS_KERNELS_H200_LIMITS_H_
