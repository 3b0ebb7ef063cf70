// The bulk tensor copy engine (TMA): one thread asks, the engine copies a box of a matrix into
// shared memory, swizzles it, fills what lies outside the matrix with zeros, and tells an mbarrier
// the bytes. PTX ISA, "cp.async.bulk.tensor" and "Tensors"; sm_90 and up.
#ifndef TCGEMM_KERNELS_PTX_TMA_H_
#define TCGEMM_KERNELS_PTX_TMA_H_

#include <cstdint>

#include "kernels/tile/host_device.h"

namespace tcgemm::ptx {

// Where a box starts, in elements; may lie outside the matrix.
struct BoxOrigin {
  int32_t inner = 0;  // along a row
  int32_t outer = 0;  // row
};

// `map` is a CUtensorMap in constant (a __grid_constant__ parameter) or global memory; `to` and
// `barrier` are shared addresses. Completes on `barrier` with the bytes of the whole box, those
// outside the matrix included.
TCGEMM_DEVICE void TmaLoad2d(uint32_t to, const void* map, BoxOrigin origin, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%2, %3}], [%4];" ::"r"(to),
      "l"(map), "r"(origin.inner), "r"(origin.outer), "r"(barrier)
      : "memory");
}

// "prefetch", .tensormap: fetches the map itself ahead of its first use.
TCGEMM_DEVICE void PrefetchTensorMap(const void* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

}  // namespace tcgemm::ptx

#endif  // TCGEMM_KERNELS_PTX_TMA_H_
