// mbarrier: a barrier in shared memory that counts arrivals and bytes. PTX ISA, "Parallel
// Synchronization and Communication Instructions: mbarrier"; the forms with a transaction count are
// sm_90's.
//
// A phase completes when `count` arrivals have come AND all expected bytes have; then the next one
// begins by itself, with the same count. Two traps:
// - Exactly `count` arrivals a phase. ArriveExpectTx is an arrival: a barrier of count 1 that gets
//   it and an Arrive besides is over-arrived, and its phases run ahead of the data.
// - A wait must not let the compiler move reads of the data above it: hence "memory".
#ifndef TCGEMM_KERNELS_PTX_MBARRIER_H_
#define TCGEMM_KERNELS_PTX_MBARRIER_H_

#include <cstdint>

#include "kernels/tile/host_device.h"

namespace tcgemm::ptx {

// "mbarrier.init". `barrier` is a shared address, 8-byte aligned.
TCGEMM_DEVICE void MbarrierInit(uint32_t barrier, uint32_t count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}

// "mbarrier.arrive": one arrival, with release semantics.
TCGEMM_DEVICE void MbarrierArrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// The same with .expect_tx: one arrival, and `bytes` more to come before the phase may complete.
TCGEMM_DEVICE void MbarrierArriveExpectTx(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}

// "mbarrier.try_wait": whether the phase of this parity is complete. May sleep for a while first.
TCGEMM_DEVICE bool MbarrierTryWait(uint32_t barrier, uint32_t parity) {
  uint32_t done;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n"
      "}\n"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
  return done != 0;
}

TCGEMM_DEVICE void MbarrierWait(uint32_t barrier, uint32_t parity) {
  while (!MbarrierTryWait(barrier, parity)) {
  }
}

// "fence", .mbarrier_init: makes initialised barriers known to the copy engine, which is not this
// thread's proxy.
TCGEMM_DEVICE void FenceMbarrierInit() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

}  // namespace tcgemm::ptx

#endif  // TCGEMM_KERNELS_PTX_MBARRIER_H_
