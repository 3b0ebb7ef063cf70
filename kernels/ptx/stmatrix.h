// stmatrix: the way back of ldmatrix, four 8x8 matrices of 16-bit elements from a warp's registers
// to shared memory. PTX ISA, "Warp-level matrix store instruction: stmatrix"; sm_90 and up.
#ifndef TCGEMM_KERNELS_PTX_STMATRIX_H_
#define TCGEMM_KERNELS_PTX_STMATRIX_H_

#include <cstdint>

#include "kernels/tile/host_device.h"

namespace tcgemm::ptx {

// All 32 threads together. Thread 8·i + r names the 16 bytes of row r of matrix i; thread t holds
// elements 2·(t % 4) and 2·(t % 4) + 1 of row t / 4 of each.
TCGEMM_DEVICE void Stmatrix4(uint32_t row, const uint32_t (&fragments)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row),
               "r"(fragments[0]), "r"(fragments[1]), "r"(fragments[2]), "r"(fragments[3])
               : "memory");
}

}  // namespace tcgemm::ptx

#endif  // TCGEMM_KERNELS_PTX_STMATRIX_H_
