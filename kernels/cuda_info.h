// Which GPUs there are and what they can do. Not public; CUDA's headers stay out of this one.
#ifndef TCGEMM_KERNELS_CUDA_INFO_H_
#define TCGEMM_KERNELS_CUDA_INFO_H_

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/plan.h"

namespace tcgemm {

// Tensor Cores with bf16 and cp.async came with sm_80.
inline constexpr int kMinComputeCapability = 80;

struct CudaInfo {
  std::string chip;            // "NVIDIA H200"
  std::string pci_id;          // "0000:0f:00.0"
  int compute_capability = 0;  // 90
  int multiprocessors = 0;
  size_t memory_bytes = 0;
  size_t shared_bytes_per_block = 0;  // with opt-in
  size_t shared_bytes_per_multiprocessor = 0;
  size_t max_copy_pitch = 0;   // of a 2-D copy, in bytes
  bool reads_pinned = false;   // kernels take the host's address of pinned memory
  int numa_node = -1;          // -1: unknown, or a machine with one
  std::string driver_version;  // "580.65.06", or "" where the system does not say
  int driver_cuda = 0;         // the CUDA that the driver speaks: 13000
  int runtime_cuda = 0;        // the runtime in this binary: 13000

  // "NVIDIA H200, sm_90, 132 SMs, 139.8 GiB, driver 580.65.06 (CUDA 13.0), runtime 13.0".
  std::string Describe() const;
};

// FAILED_PRECONDITION with the reason when GPU `ordinal` cannot be used: no driver, one that is
// older than the runtime, no GPU, none of that number, none visible under CUDA_VISIBLE_DEVICES, a
// compute capability below kMinComputeCapability. INTERNAL for any other error of CUDA's.
absl::StatusOr<CudaInfo> ReadCudaInfo(int ordinal);

// What ChoosePlan may use on it, best first. simt is not among them: any usable GPU has Tensor
// Cores, and its bits are its own.
PlanLimits PlanLimitsOf(const CudaInfo& info);

}  // namespace tcgemm

#endif  // TCGEMM_KERNELS_CUDA_INFO_H_
