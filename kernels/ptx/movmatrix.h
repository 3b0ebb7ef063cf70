// movmatrix: an 8x8 matrix of 16-bit elements turned over inside a warp. PTX ISA, "Warp-level
// matrix transpose instruction: movmatrix"; sm_75 and up.
#ifndef TCGEMM_KERNELS_PTX_MOVMATRIX_H_
#define TCGEMM_KERNELS_PTX_MOVMATRIX_H_

#include <cstdint>

#include "kernels/tile/host_device.h"

namespace tcgemm::ptx {

// All 32 threads together. Thread t gives elements 2·(t % 4) and 2·(t % 4) + 1 of row t / 4, and
// gets those of the transposed matrix.
TCGEMM_DEVICE uint32_t MovmatrixTransposed(uint32_t pair) {
  uint32_t transposed;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(transposed) : "r"(pair));
  return transposed;
}

}  // namespace tcgemm::ptx

#endif  // TCGEMM_KERNELS_PTX_MOVMATRIX_H_
