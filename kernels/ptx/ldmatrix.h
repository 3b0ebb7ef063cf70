// ldmatrix: a warp reads four 8x8 matrices of 16-bit elements from shared memory into the fragments
// that mma takes. PTX ISA, "Warp-level matrix load instruction: ldmatrix"; sm_75 and up.
//
// Thread 8·i + r names the 16 bytes of row r of matrix i. Thread t gets of each matrix the elements
// 2·(t % 4) and 2·(t % 4) + 1 of row t / 4; with .trans of column t / 4 instead.
#ifndef TCGEMM_KERNELS_PTX_LDMATRIX_H_
#define TCGEMM_KERNELS_PTX_LDMATRIX_H_

#include <cstdint>

#include "kernels/tile/host_device.h"

namespace tcgemm::ptx {

// All 32 threads together; `row` is this thread's shared address, 16-byte aligned.
TCGEMM_DEVICE void Ldmatrix4(uint32_t (&fragments)[4], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(fragments[0]), "=r"(fragments[1]), "=r"(fragments[2]), "=r"(fragments[3])
               : "r"(row)
               : "memory");
}

TCGEMM_DEVICE void Ldmatrix4Transposed(uint32_t (&fragments)[4], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(fragments[0]), "=r"(fragments[1]), "=r"(fragments[2]), "=r"(fragments[3])
               : "r"(row)
               : "memory");
}

}  // namespace tcgemm::ptx

#endif  // TCGEMM_KERNELS_PTX_LDMATRIX_H_
