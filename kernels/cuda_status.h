// CUDA errors as absl::Status, converted here and nowhere else. Not public.
//
// Threads: CudaHealth may be used from any thread.
#ifndef TCGEMM_KERNELS_CUDA_STATUS_H_
#define TCGEMM_KERNELS_CUDA_STATUS_H_

#include <cuda_runtime_api.h>

#include <atomic>

#include "absl/status/status.h"
#include "base/status_macros.h"

namespace tcgemm {

// Where and what a CUDA call was.
struct CudaCall {
  const char* expression;
  const char* file;
  int line;
};

// OK for cudaSuccess; RESOURCE_EXHAUSTED for cudaErrorMemoryAllocation; else INTERNAL. The message
// is "cudaFoo(x) failed: cudaErrorBar (what it means) at file:line". Also takes the error out of
// the thread's cudaGetLastError(), so that the next launch does not report it again.
absl::Status ConvertCudaError(cudaError_t error, const CudaCall& call);

// Whether nothing will work in this process after `error`: the context is lost, or the device is.
bool IsStickyCudaError(cudaError_t error);

// Whether a device's context still lives: false for good after the first sticky error.
class CudaHealth {
 public:
  bool healthy() const { return healthy_.load(std::memory_order_relaxed); }
  // ConvertCudaError, and notes a sticky error.
  absl::Status Check(cudaError_t error, const CudaCall& call) {
    if (error == cudaSuccess) [[likely]] {
      return absl::OkStatus();
    }
    if (IsStickyCudaError(error)) healthy_.store(false, std::memory_order_relaxed);
    return ConvertCudaError(error, call);
  }

 private:
  std::atomic<bool> healthy_{true};
};

}  // namespace tcgemm

// The status of a call that returns cudaError_t: TCGEMM_CUDA_STATUS(cudaFree(p)), and the same with
// a CudaHealth that notes whether the context was lost.
#define TCGEMM_CUDA_STATUS(expr) ::tcgemm::ConvertCudaError((expr), {#expr, __FILE__, __LINE__})
#define TCGEMM_CUDA_CHECK(health, expr) (health).Check((expr), {#expr, __FILE__, __LINE__})
#define TCGEMM_CUDA_RETURN_IF_ERROR(health, expr) \
  TCGEMM_RETURN_IF_ERROR(TCGEMM_CUDA_CHECK(health, expr))

#endif  // TCGEMM_KERNELS_CUDA_STATUS_H_
