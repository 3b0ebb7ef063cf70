#include "kernels/tensor_map.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tcgemm {
namespace {

// Limits of cuTensorMapEncodeTiled.
constexpr uint64_t kMaxDimension = uint64_t{1} << 32;
constexpr uint64_t kStrideEnd = uint64_t{1} << 40;
constexpr uint64_t kAlignmentBytes = 16;
constexpr uint32_t kMaxBoxRows = 256;

absl::Status CheckOperand(const char* name, const TensorMapKey& key) {
  const auto refuse = [&](const char* what, uint64_t value, const char* rule) {
    return absl::InvalidArgumentError(
        absl::StrCat("a tensor map of ", name, ": ", what, " is ", value, "; ", rule));
  };
  if (key.columns == 0) return refuse("columns", 0, "an empty matrix has no map");
  if (key.rows == 0) return refuse("rows", 0, "an empty matrix has no map");
  if (key.columns > kMaxDimension) return refuse("columns", key.columns, "the limit is 2^32");
  if (key.rows > kMaxDimension) return refuse("rows", key.rows, "the limit is 2^32");
  if (key.row_stride_bytes >= kStrideEnd) {
    return refuse("the row stride in bytes", key.row_stride_bytes, "it must be below 2^40");
  }
  if (key.row_stride_bytes % kAlignmentBytes != 0) {
    return refuse("the row stride in bytes", key.row_stride_bytes, "it must be a multiple of 16");
  }
  if (key.address % kAlignmentBytes != 0) {
    return refuse("the address", key.address, "it must be a multiple of 16");
  }
  if (key.box_slabs > 1 && key.columns % key.box_columns != 0) {
    return refuse("columns", key.columns, "several boxes in one copy want whole ones");
  }
  if (key.box_rows > kMaxBoxRows) return refuse("box rows", key.box_rows, "the limit is 256");
  return absl::OkStatus();
}

struct Box {
  int columns = 0;
  int rows = 0;
  int slabs = 1;
};

absl::StatusOr<TensorMapKey> KeyOfBoxes(const char* name, const MatrixView& matrix,
                                        const Box& box) {
  const auto element = static_cast<int64_t>(DTypeSize(matrix.dtype));
  TCGEMM_ASSIGN_OR_RETURN(const TensorMapSwizzle swizzle, SwizzleOf(box.columns * element));
  const TensorMapKey key = {.address = reinterpret_cast<uintptr_t>(matrix.data),
                            .columns = static_cast<uint64_t>(matrix.cols),
                            .rows = static_cast<uint64_t>(matrix.rows),
                            .row_stride_bytes = static_cast<uint64_t>(matrix.ld * element),
                            .box_columns = static_cast<uint32_t>(box.columns),
                            .box_rows = static_cast<uint32_t>(box.rows),
                            .box_slabs = static_cast<uint32_t>(box.slabs),
                            .swizzle = swizzle,
                            .dtype = matrix.dtype};
  TCGEMM_RETURN_IF_ERROR(CheckOperand(name, key));
  return key;
}

// `outer` is the tile's extent in M or N, which `parts` blocks share.
absl::StatusOr<TensorMapKey> KeyOf(const char* name, const MatrixView& matrix, bool k_major,
                                   int outer, int parts, const GpuTile& tile) {
  if (!k_major) {
    return KeyOfBoxes(name, matrix,
                      {.columns = kTensorMapColumns, .rows = MnMajorPartK(outer, tile.k, parts)});
  }
  if (parts > 1) {
    return KeyOfBoxes(name, matrix,
                      {.columns = kTensorMapColumns, .rows = KMajorPartRows(outer, tile.k, parts)});
  }
  if (tile.k <= kTensorMapColumns) {
    return KeyOfBoxes(name, matrix, {.columns = tile.k, .rows = outer});
  }
  return KeyOfBoxes(name, matrix,
                    {.columns = kTensorMapColumns,
                     .rows = outer,
                     .slabs = LoadsSlabs(tile, matrix.cols) ? tile.k / kTensorMapColumns : 1});
}

}  // namespace

std::string TensorMapKey::ToString() const {
  return absl::StrCat(std::string(DTypeName(dtype)), " ", rows, "x", columns, " at 0x",
                      absl::Hex(address), ", stride ", row_stride_bytes, " bytes, box ",
                      box_slabs > 1 ? absl::StrCat(box_slabs, " of ") : "", box_rows, "x",
                      box_columns, ", swizzle ", static_cast<int>(swizzle));
}

absl::StatusOr<TensorMapSwizzle> SwizzleOf(int64_t box_row_bytes) {
  if (box_row_bytes == 128) return TensorMapSwizzle::k128Bytes;
  if (box_row_bytes == 64) return TensorMapSwizzle::k64Bytes;
  return absl::InvalidArgumentError(
      absl::StrCat("a box row of ", box_row_bytes, " bytes has no swizzle; 64 and 128 do"));
}

absl::StatusOr<TensorMapKey> TensorMapKeyOfA(const GemmProblem& problem, const GpuTile& tile) {
  // Of B a stage has room for whole boxes (GpuTile::stage_columns).
  if (problem.a.transposed && tile.m % kTensorMapColumns != 0) {
    return absl::InvalidArgumentError(absl::StrCat("a tensor map of A: the tile's extent is ",
                                                   tile.m, "; it must be a multiple of ",
                                                   kTensorMapColumns));
  }
  return KeyOf("A", problem.a, !problem.a.transposed, tile.m, tile.cluster_n, tile);
}

absl::StatusOr<TensorMapKey> TensorMapKeyOfB(const GemmProblem& problem, const GpuTile& tile) {
  return KeyOf("B", problem.b, problem.b.transposed, tile.n, tile.cluster, tile);
}

absl::StatusOr<TensorMapKey> TensorMapKeyOfD(const GemmProblem& problem) {
  const MatrixView d = AsConst(problem.d);
  return KeyOfBoxes(
      "D", d,
      {.columns = 128 / static_cast<int>(DTypeSize(d.dtype)), .rows = kTensorMapResultRows});
}

}  // namespace tcgemm
