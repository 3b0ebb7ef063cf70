#include "kernels/cuda_memory.h"

#include <cuda_runtime_api.h>
#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/cuda_status.h"
#include "kernels/host_memory.h"

namespace tcgemm {
namespace {

// Prefers `node` for what this thread allocates while it lives. System calls instead of libnuma:
// they are two. Does nothing where they are refused (a container's seccomp), or when somebody,
// numactl for one, has already set a policy.
class ScopedNumaPreference {
 public:
  explicit ScopedNumaPreference(int node) {
    int mode = -1;
    if (node < 0 || node >= kMaxNodes ||
        syscall(SYS_get_mempolicy, &mode, nullptr, 0, nullptr, 0) != 0 || mode != MPOL_DEFAULT) {
      return;
    }
    unsigned long mask[kMaxNodes / kBitsPerWord] = {};
    mask[node / kBitsPerWord] = 1ul << (node % kBitsPerWord);
    // The kernel reads one bit less than it is told.
    active_ = syscall(SYS_set_mempolicy, MPOL_PREFERRED, mask, kMaxNodes + 1) == 0;
  }
  ~ScopedNumaPreference() {
    if (active_) syscall(SYS_set_mempolicy, MPOL_DEFAULT, nullptr, 0);
  }
  ScopedNumaPreference(const ScopedNumaPreference&) = delete;
  ScopedNumaPreference& operator=(const ScopedNumaPreference&) = delete;

 private:
  static constexpr int kBitsPerWord = 8 * sizeof(unsigned long);
  static constexpr int kMaxNodes = 1024;
  bool active_ = false;
};

}  // namespace

absl::Status UseCudaDevice(int ordinal) {
  thread_local int current = -1;
  if (current == ordinal) return absl::OkStatus();
  TCGEMM_RETURN_IF_ERROR(TCGEMM_CUDA_STATUS(cudaSetDevice(ordinal)));
  current = ordinal;
  return absl::OkStatus();
}

absl::StatusOr<MemoryBlock> AllocatePinnedMemory(size_t bytes, int numa_node) {
  if (bytes == 0) return MemoryBlock();
  const size_t available = AvailableHostBytes();
  if (bytes > available) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot pin ", bytes, " bytes: ", available, " are available"));
  }
  void* data = nullptr;
  const ScopedNumaPreference near_the_gpu(numa_node);
  TCGEMM_RETURN_IF_ERROR(TCGEMM_CUDA_STATUS(cudaHostAlloc(&data, bytes, cudaHostAllocPortable)));
  std::memset(data, 0, bytes);
  // An error here comes at the end of the process, when the context is gone already.
  return MemoryBlock(data, bytes, [](void* p) { (void)cudaFreeHost(p); });
}

absl::StatusOr<MemoryBlock> AllocateGpuMemory(size_t bytes, int ordinal) {
  if (bytes == 0) return MemoryBlock();
  TCGEMM_RETURN_IF_ERROR(UseCudaDevice(ordinal));
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  TCGEMM_RETURN_IF_ERROR(TCGEMM_CUDA_STATUS(cudaMemGetInfo(&free_bytes, &total_bytes)));
  void* data = nullptr;
  const absl::Status status =
      bytes > free_bytes
          ? absl::ResourceExhaustedError("more than is free")  // never asks for the impossible
          : TCGEMM_CUDA_STATUS(cudaMalloc(&data, bytes));
  if (absl::IsResourceExhausted(status)) {
    return absl::ResourceExhaustedError(absl::StrCat("cannot allocate ", bytes,
                                                     " bytes on the GPU: ", free_bytes, " of ",
                                                     total_bytes, " are free"));
  }
  TCGEMM_RETURN_IF_ERROR(status);
  return MemoryBlock(data, bytes, [ordinal](void* p) {
    if (UseCudaDevice(ordinal).ok()) (void)cudaFree(p);
  });
}

}  // namespace tcgemm
