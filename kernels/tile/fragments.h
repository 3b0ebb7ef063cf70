// From a tile in shared memory to the fragments of mma.m16n8k16, 16x16 elements at a time.
//
// A tile of an operand covers EXTENT rows (of op(A), or columns of op(B): "mn") and K elements of
// the inner dimension. It lies as the operand does:
//   K-major    mn rows of K elements                            (A as stored; B transposed)
//   MN-major   boxes of 64 mn elements, each K rows of 64       (A transposed; B as stored)
// both with rows of 64 or 128 bytes, swizzled. ldmatrix wants 16-byte pieces along the direction of
// storage; .trans turns an MN-major one on the way, so no layout costs a copy.
#ifndef TCGEMM_KERNELS_TILE_FRAGMENTS_H_
#define TCGEMM_KERNELS_TILE_FRAGMENTS_H_

#include <cstdint>

#include "kernels/ptx/ldmatrix.h"
#include "kernels/tile/host_device.h"
#include "kernels/tile/swizzle.h"

namespace tcgemm {

enum class Operand { kA, kB };

// mn elements of an MN-major box: 128 bytes.
inline constexpr int kBoxElements = 64;
inline constexpr int kBoxRowBytes = 2 * kBoxElements;

// In which row and chunk of a 16x16 block the lane's ldmatrix row lies, rows and chunks along the
// direction of storage. The four matrices are ordered so that the registers come out as mma.h says:
// A wants (mn, k), (mn+8, k), (mn, k+8), (mn+8, k+8); B wants k and k+8 of the first 8 columns,
// then of the next 8.
struct LanePlace {
  int row = 0;
  int chunk = 0;
};

template <Operand OPERAND, bool K_MAJOR>
TCGEMM_HD constexpr LanePlace PlaceOfLane(int lane) {
  // Matrices 0 and 1 follow each other down the rows, or along the chunks.
  if ((OPERAND == Operand::kA) == K_MAJOR) return {lane & 15, lane >> 4};
  return {(lane & 7) + ((lane >> 4) << 3), (lane >> 3) & 1};
}

// Offset in the tile of the lane's ldmatrix row of the block at `mn` (a multiple of 16), K step 0.
template <Operand OPERAND, bool K_MAJOR, int K>
TCGEMM_HD constexpr uint32_t LaneOffset(int mn, int lane) {
  const LanePlace place = PlaceOfLane<OPERAND, K_MAJOR>(lane);
  if (K_MAJOR) return SwizzledOffset<K * 2>(mn + place.row, place.chunk);
  const int box = mn / kBoxElements;
  return static_cast<uint32_t>(box * K * kBoxRowBytes) +
         SwizzledOffset<kBoxRowBytes>(place.row, mn % kBoxElements / kChunkElements + place.chunk);
}

// The same for the block that is `block`·16 further along mn and `step`·16 along K, from that
// offset (or the address, as tiles are 1024-byte aligned). A constant is added, or XORed where the
// swizzle is; `block` must not leave the box.
template <bool K_MAJOR, int K>
TCGEMM_HD constexpr uint32_t BlockOffset(uint32_t lane_offset, int block, int step) {
  if (K_MAJOR) return (lane_offset ^ (step * 32)) + block * 16 * K * 2;
  return (lane_offset ^ (block * 32)) + step * 16 * kBoxRowBytes;
}

template <bool K_MAJOR, int K>
TCGEMM_DEVICE void LoadBlock(uint32_t (&fragments)[4], uint32_t lane_address, int block, int step) {
  // Which operand it is decided the lane's address; transposed is what .trans undoes.
  const uint32_t row = BlockOffset<K_MAJOR, K>(lane_address, block, step);
  if (K_MAJOR) {
    ptx::Ldmatrix4(fragments, row);
  } else {
    ptx::Ldmatrix4Transposed(fragments, row);
  }
}

}  // namespace tcgemm

#endif  // TCGEMM_KERNELS_TILE_FRAGMENTS_H_
