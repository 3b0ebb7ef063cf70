#include "kernels/tensor_map.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

namespace tcgemm {
namespace {

using ::testing::HasSubstr;

constexpr GpuTile kTile = {.m = 128, .n = 256, .k = 64, .stages = 4, .warps_m = 2, .warps_n = 4};

const void* Address(uintptr_t value) { return reinterpret_cast<const void*>(value); }

// m = 300, n = 520, k = 72, every ld one step of 8 above the columns.
GemmProblem Problem(bool a_transposed, bool b_transposed) {
  GemmProblem problem;
  problem.a = {Address(0x10000), 300, 72, 80, DType::kBf16, false};
  if (a_transposed) problem.a = {Address(0x10000), 72, 300, 304, DType::kBf16, true};
  problem.b = {Address(0x20000), 72, 520, 528, DType::kBf16, false};
  if (b_transposed) problem.b = {Address(0x20000), 520, 72, 80, DType::kBf16, true};
  return problem;
}

TEST(TensorMapTest, SwizzleIsTheWidthOfTheBox) {
  EXPECT_EQ(*SwizzleOf(128), TensorMapSwizzle::k128Bytes);
  EXPECT_EQ(*SwizzleOf(64), TensorMapSwizzle::k64Bytes);
  for (int64_t bytes : {0, 16, 32, 63, 96, 127, 129, 256}) {
    EXPECT_TRUE(absl::IsInvalidArgument(SwizzleOf(bytes).status())) << bytes;
  }
}

TEST(TensorMapTest, KMajorOperandsAreOneBox) {
  const GemmProblem problem = Problem(false, true);
  const TensorMapKey a = {.address = 0x10000,
                          .columns = 72,
                          .rows = 300,
                          .row_stride_bytes = 160,
                          .box_columns = 64,
                          .box_rows = 128,
                          .swizzle = TensorMapSwizzle::k128Bytes,
                          .dtype = DType::kBf16};
  EXPECT_EQ(*TensorMapKeyOfA(problem, kTile), a) << TensorMapKeyOfA(problem, kTile)->ToString();
  const TensorMapKey b = {.address = 0x20000,
                          .columns = 72,
                          .rows = 520,
                          .row_stride_bytes = 160,
                          .box_columns = 64,
                          .box_rows = 256,
                          .swizzle = TensorMapSwizzle::k128Bytes,
                          .dtype = DType::kBf16};
  EXPECT_EQ(*TensorMapKeyOfB(problem, kTile), b) << TensorMapKeyOfB(problem, kTile)->ToString();
}

TEST(TensorMapTest, OtherOperandsAreBoxesOf64Columns) {
  const GemmProblem problem = Problem(true, false);
  const TensorMapKey a = {.address = 0x10000,
                          .columns = 300,
                          .rows = 72,
                          .row_stride_bytes = 608,
                          .box_columns = 64,
                          .box_rows = 64,
                          .swizzle = TensorMapSwizzle::k128Bytes,
                          .dtype = DType::kBf16};
  EXPECT_EQ(*TensorMapKeyOfA(problem, kTile), a) << TensorMapKeyOfA(problem, kTile)->ToString();
  const TensorMapKey b = {.address = 0x20000,
                          .columns = 520,
                          .rows = 72,
                          .row_stride_bytes = 1056,
                          .box_columns = 64,
                          .box_rows = 64,
                          .swizzle = TensorMapSwizzle::k128Bytes,
                          .dtype = DType::kBf16};
  EXPECT_EQ(*TensorMapKeyOfB(problem, kTile), b) << TensorMapKeyOfB(problem, kTile)->ToString();
}

// A narrower K narrows the box of a K-major operand, and shortens that of the other kind.
TEST(TensorMapTest, TilesOf32KSwizzle64Bytes) {
  constexpr GpuTile kNarrow = {
      .m = 128, .n = 128, .k = 32, .stages = 3, .warps_m = 2, .warps_n = 2};
  const TensorMapKey a = *TensorMapKeyOfA(Problem(false, false), kNarrow);
  EXPECT_EQ(a.box_columns, 32u);
  EXPECT_EQ(a.box_rows, 128u);
  EXPECT_EQ(a.swizzle, TensorMapSwizzle::k64Bytes);
  const TensorMapKey b = *TensorMapKeyOfB(Problem(false, false), kNarrow);
  EXPECT_EQ(b.box_columns, 64u);
  EXPECT_EQ(b.box_rows, 32u);
  EXPECT_EQ(b.swizzle, TensorMapSwizzle::k128Bytes);
}

// A stage of 128 of K: one copy brings both boxes where K is whole boxes, else two do.
TEST(TensorMapTest, LongStagesOfKMajorOperandsAreSlabs) {
  constexpr GpuTile kLong = {
      .m = 64, .n = 8, .k = 128, .stages = 7, .warps_m = 4, .warps_n = 1, .swapped = true};
  GemmProblem problem = Problem(false, true);
  const TensorMapKey ragged = *TensorMapKeyOfA(problem, kLong);
  EXPECT_EQ(ragged.box_columns, 64u);
  EXPECT_EQ(ragged.box_slabs, 1u) << "K = 72";
  problem.a.cols = problem.b.cols = 192;
  problem.a.ld = problem.b.ld = 200;
  const TensorMapKey a = *TensorMapKeyOfA(problem, kLong);
  EXPECT_EQ(a.ToString(), "bf16 300x192 at 0x10000, stride 400 bytes, box 2 of 64x64, swizzle 128");
  EXPECT_EQ(TensorMapKeyOfB(problem, kLong)->box_rows, 8u);
  EXPECT_EQ(TensorMapKeyOfB(problem, kLong)->box_slabs, 2u);
  const TensorMapKey across = *TensorMapKeyOfA(Problem(true, false), kLong);
  EXPECT_EQ(across.box_columns, 64u);
  EXPECT_EQ(across.box_rows, 128u) << "K is its rows: one box, however long";
  EXPECT_EQ(across.box_slabs, 1u);
}

TEST(TensorMapTest, BlocksThatShareAnOperandLoadAPartEach) {
  constexpr GpuTile kShared = {.m = 64, .n = 32, .k = 128, .cluster_n = 4};
  GemmProblem problem = Problem(false, true);
  problem.a.cols = problem.b.cols = 192;
  problem.a.ld = problem.b.ld = 200;
  const TensorMapKey a = *TensorMapKeyOfA(problem, kShared);
  EXPECT_EQ(a.box_rows, 32u) << "half of one of the two slabs";
  EXPECT_EQ(a.box_slabs, 1u);
  EXPECT_EQ(TensorMapKeyOfB(problem, kShared)->box_slabs, 2u) << "its own";
  EXPECT_EQ(TensorMapKeyOfA(Problem(true, false), kShared)->box_rows, 32u) << "a quarter of K";
  constexpr GpuTile kPair = {.m = 128, .n = 256, .k = 64, .cluster = 2};
  EXPECT_EQ(TensorMapKeyOfB(problem, kPair)->box_rows, 128u);
  EXPECT_EQ(TensorMapKeyOfB(Problem(false, false), kPair)->box_rows, 64u) << "two boxes of four";
}

TEST(TensorMapTest, EveryCompiledTileHasKeysInEveryLayout) {
  std::vector<GpuTileEntry> entries(kGpuTiles.begin(), kGpuTiles.end());
  entries.insert(entries.end(), kWgmmaTiles.begin(), kWgmmaTiles.end());
  for (const GpuTileEntry& entry : entries) {
    for (int layout = 0; layout < 4; ++layout) {
      const GemmProblem problem = Problem((layout & 1) != 0, (layout & 2) != 0);
      EXPECT_TRUE(TensorMapKeyOfA(problem, entry.tile).ok()) << entry.tile.m << layout;
      EXPECT_TRUE(TensorMapKeyOfB(problem, entry.tile).ok()) << entry.tile.n << layout;
    }
  }
}

TEST(TensorMapTest, OffsetsBeyondFourGigabytesAreKept) {
  GemmProblem problem = Problem(false, true);
  problem.a.ld = int64_t{1} << 38;
  problem.a.data = Address(0x7fff'0000'0000);
  const TensorMapKey key = *TensorMapKeyOfA(problem, kTile);
  EXPECT_EQ(key.row_stride_bytes, uint64_t{1} << 39);
  EXPECT_EQ(key.address, uint64_t{0x7fff'0000'0000});
}

void ExpectRefused(const GemmProblem& problem, const GpuTile& tile, const char* what) {
  const absl::Status status = TensorMapKeyOfA(problem, tile).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(what));
}

TEST(TensorMapTest, RefusesWhatTheEncoderWould) {
  GemmProblem problem = Problem(false, true);
  problem.a.cols = 0;
  ExpectRefused(problem, kTile, "columns is 0");
  problem = Problem(false, true);
  problem.a.rows = 0;
  ExpectRefused(problem, kTile, "rows is 0");
  problem = Problem(false, true);
  problem.a.rows = (int64_t{1} << 32) + 1;
  ExpectRefused(problem, kTile, "rows is 4294967297");
  problem = Problem(false, true);
  problem.a.cols = (int64_t{1} << 32) + 1;
  ExpectRefused(problem, kTile, "columns is 4294967297");
  problem = Problem(false, true);
  problem.a.ld = 84;
  ExpectRefused(problem, kTile, "stride in bytes is 168; it must be a multiple of 16");
  problem = Problem(false, true);
  problem.a.ld = int64_t{1} << 39;
  ExpectRefused(problem, kTile, "below 2^40");
  problem = Problem(false, true);
  problem.a.data = Address(0x10008);
  ExpectRefused(problem, kTile, "the address is 65544; it must be a multiple of 16");
  GpuTile tile = kTile;
  tile.k = 48;
  ExpectRefused(Problem(false, true), tile, "96 bytes");
  tile = kTile;
  tile.m = 512;
  ExpectRefused(Problem(false, true), tile, "box rows is 512");
  tile.m = 96;
  ExpectRefused(Problem(true, true), tile, "multiple of 64");
}

TEST(TensorMapTest, PrintsEveryField) {
  const TensorMapKey key = *TensorMapKeyOfA(Problem(false, true), kTile);
  EXPECT_EQ(key.ToString(), "bf16 300x72 at 0x10000, stride 160 bytes, box 128x64, swizzle 128");
}

}  // namespace
}  // namespace tcgemm
