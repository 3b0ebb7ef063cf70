// One NVIDIA GPU as a Device. Only in builds with the CUDA toolkit (TCGEMM_CUDA). See device.h for
// the contract; what follows adds to it.
//
// A stream remembers the tensor maps of what was launched on it: reuse streams.
// Wait spins for 50 µs, then sleeps ever longer, up to 1 ms; it sets the calling thread's timer
// slack to 1 µs. RESOURCE_EXHAUSTED where CUDA has no memory; INTERNAL carries CUDA's error name,
// its text, the call and its place.
#ifndef TCGEMM_KERNELS_DEVICE_CUDA_H_
#define TCGEMM_KERNELS_DEVICE_CUDA_H_

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/device.h"

namespace tcgemm {

struct CudaDeviceOptions {
  // Take pinned memory from the GPU's NUMA node, where the system tells and allows it.
  bool near_numa_node = true;
};

// OK when GPU `ordinal` can serve; else FAILED_PRECONDITION with the reason in words ("no usable
// GPU: no NVIDIA driver on this machine"). Creates no context. Works without a driver.
absl::Status CudaDeviceUsable(int ordinal);

// Makes the context, loads every kernel and times a product of 4096³ (about 100 MiB of device
// memory for some ms), so that no first request pays. CudaDeviceUsable's error; RESOURCE_EXHAUSTED
// when the memory is not there; INTERNAL when CUDA fails.
absl::StatusOr<std::unique_ptr<Device>> CreateCudaDevice(int ordinal,
                                                         const CudaDeviceOptions& options = {});

}  // namespace tcgemm

#endif  // TCGEMM_KERNELS_DEVICE_CUDA_H_
