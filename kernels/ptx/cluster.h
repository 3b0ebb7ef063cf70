// Thread block clusters: blocks that run at the same time and reach each other's shared memory.
// PTX ISA, "Cluster", "barrier.cluster", "mapa"; sm_90 and up.
#ifndef TCGEMM_KERNELS_PTX_CLUSTER_H_
#define TCGEMM_KERNELS_PTX_CLUSTER_H_

#include <cstdint>

#include "kernels/tile/host_device.h"

namespace tcgemm::ptx {

// This block's number in its cluster.
TCGEMM_DEVICE uint32_t ClusterRank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// All threads of all blocks of the cluster; orders shared memory among them.
TCGEMM_DEVICE void ClusterSync() {
  asm volatile(
      "barrier.cluster.arrive.release.aligned;\n"
      "barrier.cluster.wait.acquire.aligned;" ::
          : "memory");
}

// One arrival on the barrier that lies at `barrier` in the shared memory of block `rank`. It orders
// nothing for that block (its scope is this one): enough to say that a stage was read. With
// .release.cluster every step of a GEMM took 1.2 µs longer (H200).
TCGEMM_DEVICE void MbarrierArriveRemote(uint32_t barrier, uint32_t rank) {
  asm volatile(
      "{\n"
      ".reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [remote];\n"
      "}\n" ::"r"(barrier),
      "r"(rank)
      : "memory");
}

}  // namespace tcgemm::ptx

#endif  // TCGEMM_KERNELS_PTX_CLUSTER_H_
