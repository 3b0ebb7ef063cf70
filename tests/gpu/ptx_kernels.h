// What ptx_test.cc asks the device: each wrapper of kernels/ptx/ beside its cuda::ptx twin.
#ifndef TCGEMM_TESTS_GPU_PTX_KERNELS_H_
#define TCGEMM_TESTS_GPU_PTX_KERNELS_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/launch.h"

namespace tcgemm {

// Each runs one kernel and waits for it. `out` arguments are host memory.

// Bit per lane that elect.sync chose, for three calls.
cudaError_t RunElect(uint32_t (&chosen)[3]);

// Whether the phases of parity 0 and 1 count as complete, before and after each step of a barrier's
// life; ours and cuda::ptx's. The steps are named in ptx_test.cc.
inline constexpr int kBarrierSteps = 6;
struct BarrierStates {
  uint32_t complete[kBarrierSteps][2];
};
cudaError_t RunBarriers(BarrierStates& ours, BarrierStates& twin);

// A 64x64 box of bf16 whose map swizzles 128 bytes, as it lies in shared memory.
inline constexpr int kBoxSide = 64;
struct BoxBytes {
  uint16_t elements[kBoxSide * kBoxSide];
};
struct BoxStart {
  int32_t column = 0;
  int32_t row = 0;
};
cudaError_t RunTmaLoad(const TensorMap& map, BoxStart start, BoxBytes& ours, BoxBytes& twin);
// Two boxes of a map of slabs: `start.column` counts boxes.
struct TwoBoxes {
  BoxBytes slabs[2];
};
cudaError_t RunTmaLoadSlabs(const TensorMap& map, BoxStart start, TwoBoxes& ours, TwoBoxes& twin);

// cp.async of 16 bytes per lane of which lane i asks for i % 17: they have no twin.
struct CopiedBytes {
  uint8_t bytes[32][16];
};
cudaError_t RunCpAsync(const CopiedBytes& source, CopiedBytes& copied);

// Four 8x8 matrices, row-major one behind the other; lane t's four fragments.
struct FourMatrices {
  uint16_t elements[4][8][8];
};
struct Fragments {
  uint32_t lane[32][4];
};
// `stored` is what stmatrix made of the plain fragments, `turned` what movmatrix did.
cudaError_t RunLdmatrix(const FourMatrices& matrices, Fragments& plain, Fragments& transposed,
                        Fragments& turned, FourMatrices& stored);

// D = A·B + C of one m16n8k16, fragments filled by their documented places.
struct MmaMatrices {
  uint16_t a[16][16];
  uint16_t b[16][8];
  float d[16][8];  // C before, D after
};
cudaError_t RunMma(MmaMatrices& matrices);

}  // namespace tcgemm

#endif  // TCGEMM_TESTS_GPU_PTX_KERNELS_H_
