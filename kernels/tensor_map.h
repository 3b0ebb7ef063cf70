// What a TMA descriptor ("tensor map") says about an operand, as data: which boxes of which matrix
// TMA copies into shared memory, and how it swizzles them. No CUDA here: tensor_map_encode.h turns
// a key into a map, tensor_map_cache.h remembers the maps.
//
// Threads: plain functions of their arguments.
// Sources: CUDA driver API, cuTensorMapEncodeTiled; PTX ISA, "Tensors" (swizzling modes).
#ifndef TCGEMM_KERNELS_TENSOR_MAP_H_
#define TCGEMM_KERNELS_TENSOR_MAP_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/gemm.h"
#include "kernels/gpu_tiles.h"

namespace tcgemm {

// How 16-byte chunks are permuted within rows of a box, in bytes of the pattern's row.
enum class TensorMapSwizzle { k64Bytes = 64, k128Bytes = 128 };
// How much more L2 fetches from memory around what a box touches.
enum class TensorMapL2Promotion { k128Bytes = 128, k256Bytes = 256 };

// Everything that a map depends on, so that equal keys mean equal maps. What is fixed for all of
// them is below. A matrix is row-major: `columns` is the contiguous dimension.
struct TensorMapKey {
  uint64_t address = 0;  // device memory
  uint64_t columns = 0;  // of the matrix, in elements: reads beyond give zeros
  uint64_t rows = 0;
  uint64_t row_stride_bytes = 0;
  uint32_t box_columns = 0;  // of one copy, in elements
  uint32_t box_rows = 0;
  // Boxes that one copy brings, each box_columns further along the rows than the one before. More
  // than 1 only of matrices whose columns are whole boxes: the map has three dimensions then, a
  // box's column, the row, the box, and its origin counts boxes.
  uint32_t box_slabs = 1;
  TensorMapSwizzle swizzle = TensorMapSwizzle::k128Bytes;
  DType dtype = DType::kBf16;

  bool operator==(const TensorMapKey&) const = default;
  // "bf16 100x64 at 0x7f0000000000, stride 128 bytes, box 128x64, swizzle 128": rows x columns. Of
  // two slabs "box 2 of 128x64".
  std::string ToString() const;
};

// The same for every map: elements beyond the matrix read as zero, no interleave, every element
// (stride 1), and this much L2 promotion.
inline constexpr TensorMapL2Promotion kTensorMapL2Promotion = TensorMapL2Promotion::k128Bytes;

// Elements in a row of a box whose contiguous dimension is not K: a 128-byte swizzle row of bf16.
// A tile of m (or n) elements takes m / 64 such boxes.
inline constexpr int kTensorMapColumns = 64;

// The swizzle whose pattern is exactly one row of a box: 128 bytes or 64. INVALID_ARGUMENT for
// other widths.
absl::StatusOr<TensorMapSwizzle> SwizzleOf(int64_t box_row_bytes);

// What one operand of a problem needs for `tile`. K-major means that K is contiguous: A as stored,
// B transposed. Then one box holds the tile's stage, tile.k columns by tile.m (A) or tile.n (B)
// rows; of what blocks of a cluster share each loads a part (kernels/gpu_tiles.h). A stage of more
// than kTensorMapColumns of K is several such boxes, and one copy brings them all where LoadsSlabs
// says so. Otherwise a box is kTensorMapColumns of M or N by tile.k rows of K.
//
// INVALID_ARGUMENT, naming the operand and the value, when it is empty (a problem with a zero
// dimension has no maps), when its base is not 16-byte or its ld not 8-element aligned, when a
// dimension exceeds 2^32 or the stride 2^40 bytes, or when the tile's box has no swizzle or more
// than 256 rows.
absl::StatusOr<TensorMapKey> TensorMapKeyOfA(const GemmProblem& problem, const GpuTile& tile);
absl::StatusOr<TensorMapKey> TensorMapKeyOfB(const GemmProblem& problem, const GpuTile& tile);
// Whether one copy brings a stage of a K-major operand, though it is several boxes.
inline bool LoadsSlabs(const GpuTile& tile, int64_t k) {
  return tile.k > kTensorMapColumns && k % kTensorMapColumns == 0;
}
// Of the result, which tma_wgmma stores in boxes of 128 bytes by kTensorMapResultRows rows.
absl::StatusOr<TensorMapKey> TensorMapKeyOfD(const GemmProblem& problem);
inline constexpr int kTensorMapResultRows = 64;

}  // namespace tcgemm

#endif  // TCGEMM_KERNELS_TENSOR_MAP_H_
