// The bulk tensor copy engine (TMA): one thread asks, the engine copies a box of a matrix into
// shared memory, swizzles it, fills what lies outside the matrix with zeros, and tells an mbarrier
// the bytes. PTX ISA, "cp.async.bulk.tensor" and "Tensors"; sm_90 and up.
#ifndef TCGEMM_KERNELS_PTX_TMA_H_
#define TCGEMM_KERNELS_PTX_TMA_H_

#include <cstdint>

#include "kernels/tile/host_device.h"

namespace tcgemm::ptx {

// Where a box starts, in elements; may lie outside the matrix. With a swizzle `inner` must be a
// multiple of 16 bytes: 149 elements of bf16 were an illegal instruction on an H200, 144 are not.
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

// Where a box of a map of three dimensions starts: `inner` and `outer` as above, and the box.
struct SlabOrigin {
  int32_t inner = 0;
  int32_t outer = 0;
  int32_t slab = 0;
};

// As TmaLoad2d; the boxes lie one after the other.
TCGEMM_DEVICE void TmaLoad3d(uint32_t to, const void* map, SlabOrigin origin, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%2, %3, %4}], [%5];" ::"r"(to),
      "l"(map), "r"(origin.inner), "r"(origin.outer), "r"(origin.slab), "r"(barrier)
      : "memory");
}

#ifdef __CUDACC__  // 16-bit operands are nvcc's

// The same box into the shared memory of every block of the cluster whose bit is set in `blocks`,
// at the same place, telling each one's own barrier there.
TCGEMM_DEVICE void TmaLoad2dMulticast(uint32_t to, const void* map, BoxOrigin origin,
                                      uint32_t barrier, uint16_t blocks) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
      "l"(map), "r"(origin.inner), "r"(origin.outer), "r"(barrier), "h"(blocks)
      : "memory");
}

#endif  // __CUDACC__

// "cp.async.bulk.prefetch.tensor": the boxes of TmaLoad2d and TmaLoad3d into the L2 cache. Nobody
// sees that it was done: also of what another kernel is about to write.
TCGEMM_DEVICE void TmaPrefetch2d(const void* map, BoxOrigin origin) {
  asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%0, {%1, %2}];" ::"l"(map),
               "r"(origin.inner), "r"(origin.outer)
               : "memory");
}
TCGEMM_DEVICE void TmaPrefetch3d(const void* map, SlabOrigin origin) {
  asm volatile("cp.async.bulk.prefetch.tensor.3d.L2.global.tile [%0, {%1, %2, %3}];" ::"l"(map),
               "r"(origin.inner), "r"(origin.outer), "r"(origin.slab)
               : "memory");
}

// Shared memory to a box of the matrix; what lies outside it is not written. The bytes must have
// been fenced (FenceAsyncShared) by the threads that wrote them, and a barrier passed.
TCGEMM_DEVICE void TmaStore2d(const void* map, BoxOrigin origin, uint32_t from) {
  asm volatile(
      "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];" ::"l"(map),
      "r"(origin.inner), "r"(origin.outer), "r"(from)
      : "memory");
}

// "cp.async.bulk.commit_group": closes a group of this thread's stores.
TCGEMM_DEVICE void TmaStoreCommit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// "cp.async.bulk.wait_group", .read: until at most PENDING of this thread's groups still read their
// shared memory. Without .read, until at most PENDING are not complete in memory.
template <int PENDING>
TCGEMM_DEVICE void TmaStoreWaitRead() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
}
template <int PENDING>
TCGEMM_DEVICE void TmaStoreWait() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(PENDING) : "memory");
}

// "fence", .proxy.async: this thread's ordinary writes to shared memory before it are seen by the
// copy engine (and by wgmma) after it.
TCGEMM_DEVICE void FenceAsyncShared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// "prefetch", .tensormap: fetches the map itself ahead of its first use.
TCGEMM_DEVICE void PrefetchTensorMap(const void* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

}  // namespace tcgemm::ptx

#endif  // TCGEMM_KERNELS_PTX_TMA_H_
