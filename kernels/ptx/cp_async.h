// cp.async: a thread copies 16 bytes from global to shared memory without a register and without
// waiting. PTX ISA, "cp.async"; sm_80 and up.
#ifndef TCGEMM_KERNELS_PTX_CP_ASYNC_H_
#define TCGEMM_KERNELS_PTX_CP_ASYNC_H_

#include <cstdint>

#include "kernels/tile/host_device.h"

namespace tcgemm::ptx {

// Reads the first `bytes` (0 … 16) and fills the rest of the 16 with zeros. Both addresses 16-byte
// aligned; with 0 bytes nothing is read. ".cg": past L1, which would not see these bytes again.
TCGEMM_DEVICE void CpAsync16(uint32_t to, const void* from, uint32_t bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes)
               : "memory");
}

// "cp.async.commit_group": closes a group of this thread's copies; it may be empty.
TCGEMM_DEVICE void CpAsyncCommit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// "cp.async.wait_group": waits until at most PENDING of this thread's newest groups are under way.
// Other threads' copies are seen only after a barrier.
template <int PENDING>
TCGEMM_DEVICE void CpAsyncWait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

}  // namespace tcgemm::ptx

#endif  // TCGEMM_KERNELS_PTX_CP_ASYNC_H_
