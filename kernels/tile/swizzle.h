// Where a 16-byte chunk of a tile lies in shared memory.
//
// Shared memory has 32 banks of 4 bytes: a row of 128 bytes covers them all. Stored plainly, the
// same chunk of 8 rows lies in the same 4 banks, and ldmatrix, which reads one chunk of each of 8
// rows at once, would take 8 turns. The swizzle exchanges the chunks of a row by its number, so the
// 8 chunks of one column lie in 8 different bank groups: one turn.
//
// These are the TMA engine's own patterns (CUDA driver API, CU_TENSOR_MAP_SWIZZLE_128B and _64B;
// PTX ISA, "Tensor swizzling modes"): bits of the address's row are XORed onto the bits of its
// chunk. They repeat every 1024 (512) bytes, to which a tile must be aligned.
#ifndef TCGEMM_KERNELS_TILE_SWIZZLE_H_
#define TCGEMM_KERNELS_TILE_SWIZZLE_H_

#include <cstdint>

#include "kernels/tile/host_device.h"

namespace tcgemm {

inline constexpr int kChunkBytes = 16;
inline constexpr int kChunkElements = 8;  // bf16

// What is XORed onto the chunk of `row`: with rows of 128 bytes 8 rows fill the period, so all 8
// chunks are exchanged; with rows of 64 bytes two rows share a line of banks.
template <int ROW_BYTES>
TCGEMM_HD constexpr int SwizzleOfRow(int row) {
  static_assert(ROW_BYTES == 64 || ROW_BYTES == 128);
  return ROW_BYTES == 128 ? row & 7 : (row >> 1) & 3;
}

// Byte offset of the chunk in a tile whose rows follow each other without gaps.
template <int ROW_BYTES>
TCGEMM_HD constexpr uint32_t SwizzledOffset(int row, int chunk) {
  return static_cast<uint32_t>(row * ROW_BYTES +
                               (chunk ^ SwizzleOfRow<ROW_BYTES>(row)) * kChunkBytes);
}

}  // namespace tcgemm

#endif  // TCGEMM_KERNELS_TILE_SWIZZLE_H_
