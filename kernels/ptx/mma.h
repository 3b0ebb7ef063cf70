// mma.sync: the Tensor Core's product of one warp. PTX ISA, "Matrix Fragments for
// mma.m16n8k16 with floating point type" and "mma"; bf16 from sm_80 on.
//
// D(16x8) = A(16x16)·B(16x8) + D. Thread t, with group g = t / 4 and place p = t % 4, holds
//   a[0]: A(g,   2p..2p+1)   a[1]: A(g+8, 2p..)   a[2]: A(g, 2p+8..)   a[3]: A(g+8, 2p+8..)
//   b[0]: B(2p..2p+1, g)     b[1]: B(2p+8.., g)
//   d[0], d[1]: D(g, 2p..2p+1)                    d[2], d[3]: D(g+8, 2p..2p+1)
#ifndef TCGEMM_KERNELS_PTX_MMA_H_
#define TCGEMM_KERNELS_PTX_MMA_H_

#include <cstdint>

#include "kernels/tile/host_device.h"

namespace tcgemm::ptx {

// All 32 threads together. Not volatile: it is a pure function of its operands, and the compiler
// may schedule it among the loads.
TCGEMM_DEVICE void MmaBf16M16N8K16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                   uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

}  // namespace tcgemm::ptx

#endif  // TCGEMM_KERNELS_PTX_MMA_H_
