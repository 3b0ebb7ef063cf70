// The wrappers of kernels/ptx/ do what their cuda::ptx twins do, or, where cuda::ptx has none, what
// the PTX ISA's pictures say.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/tensor_map.h"
#include "kernels/tensor_map_encode.h"
#include "matrix/bf16.h"
#include "tests/gpu/gpu_launch.h"
#include "tests/gpu/ptx_kernels.h"
#include "tests/gpu/stand_in_device.h"

namespace tcgemm {
namespace {

class PtxTest : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsStandIn()) GTEST_SKIP() << "needs a real GPU";
    if (!IsSkipped() && gpu().device().plan_limits().compute_capability < 90) {
      GTEST_SKIP() << "these instructions are sm_90's";
    }
  }
};

TEST_F(PtxTest, ElectChoosesOneThread) {
  uint32_t chosen[3] = {};
  ASSERT_EQ(RunElect(chosen), cudaSuccess);
  for (uint32_t mask : chosen) EXPECT_EQ(std::popcount(mask), 1) << mask;
}

TEST_F(PtxTest, BarriersLiveAsTheirTwins) {
  BarrierStates ours = {};
  BarrierStates twin = {};
  ASSERT_EQ(RunBarriers(ours, twin), cudaSuccess);
  // Phase 0 is under way until its second arrival and its bytes have come, then phase 1. A wait for
  // the parity before the first phase succeeds at once.
  const uint32_t expected[kBarrierSteps][2] = {{0, 1}, {0, 1}, {0, 1}, {1, 0}, {1, 0}, {0, 1}};
  for (int step = 0; step < kBarrierSteps; ++step) {
    for (int parity = 0; parity < 2; ++parity) {
      EXPECT_EQ(twin.complete[step][parity], expected[step][parity]) << step << " " << parity;
      EXPECT_EQ(ours.complete[step][parity], twin.complete[step][parity]) << step << " " << parity;
    }
  }
}

// Where a 128-byte swizzle puts an element: 16-byte chunk c of row r lies in chunk c ^ (r % 8).
int SwizzledIndex(int row, int column) {
  return row * kBoxSide + ((column / 8) ^ (row % 8)) * 8 + column % 8;
}

TEST_F(PtxTest, TmaLoadsSwizzledBoxesAndZerosOutside) {
  const int64_t rows = 100;
  const int64_t columns = 150;
  const int64_t ld = 192;
  std::vector<uint16_t> matrix(rows * ld, 0xffff);
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) matrix[i * ld + j] = static_cast<uint16_t>(i * 151 + j);
  }
  Device& device = gpu().device();
  const MemoryBlock memory = *device.AllocateDevice(matrix.size() * 2);
  ASSERT_EQ(cudaMemcpy(memory.data(), matrix.data(), matrix.size() * 2, cudaMemcpyHostToDevice),
            cudaSuccess);
  const TensorMapKey key{.address = reinterpret_cast<uint64_t>(memory.data()),
                         .columns = columns,
                         .rows = rows,
                         .row_stride_bytes = ld * 2,
                         .box_columns = kBoxSide,
                         .box_rows = kBoxSide};
  const absl::StatusOr<TensorMapEncoder> encoder = FindTensorMapEncoder();
  ASSERT_TRUE(encoder.ok()) << encoder.status();
  const absl::StatusOr<TensorMap> map = (*encoder)(key);
  ASSERT_TRUE(map.ok()) << map.status();
  for (const BoxStart start : {BoxStart{0, 0}, {64, 0}, {128, 64}, {0, 99}, {144, 3}, {-8, -5}}) {
    SCOPED_TRACE(testing::Message() << "column " << start.column << ", row " << start.row);
    BoxBytes ours = {};
    BoxBytes twin = {};
    ASSERT_EQ(RunTmaLoad(*map, start, ours, twin), cudaSuccess);
    EXPECT_EQ(std::memcmp(&ours, &twin, sizeof(ours)), 0);
    for (int r = 0; r < kBoxSide; ++r) {
      for (int c = 0; c < kBoxSide; ++c) {
        const int64_t i = start.row + r;
        const int64_t j = start.column + c;
        const bool inside = i >= 0 && i < rows && j >= 0 && j < columns;
        ASSERT_EQ(ours.elements[SwizzledIndex(r, c)], inside ? matrix[i * ld + j] : 0)
            << r << "," << c << " of the box at " << start.row << "," << start.column;
      }
    }
  }
}

TEST_F(PtxTest, TmaLoadsSlabsBehindEachOther) {
  const int64_t rows = 100;
  const int64_t columns = 192;
  const int64_t ld = 200;
  std::vector<uint16_t> matrix(rows * ld, 0xffff);
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) matrix[i * ld + j] = static_cast<uint16_t>(i * 193 + j);
  }
  Device& device = gpu().device();
  const MemoryBlock memory = *device.AllocateDevice(matrix.size() * 2);
  ASSERT_EQ(cudaMemcpy(memory.data(), matrix.data(), matrix.size() * 2, cudaMemcpyHostToDevice),
            cudaSuccess);
  const absl::StatusOr<TensorMapEncoder> encoder = FindTensorMapEncoder();
  ASSERT_TRUE(encoder.ok()) << encoder.status();
  const absl::StatusOr<TensorMap> map =
      (*encoder)({.address = reinterpret_cast<uint64_t>(memory.data()),
                  .columns = columns,
                  .rows = rows,
                  .row_stride_bytes = ld * 2,
                  .box_columns = kBoxSide,
                  .box_rows = kBoxSide,
                  .box_slabs = 2});
  ASSERT_TRUE(map.ok()) << map.status();
  for (const BoxStart start : {BoxStart{0, 0}, {1, 60}, {2, -3}, {-1, 0}, {3, 0}}) {
    TwoBoxes ours = {};
    TwoBoxes twin = {};
    ASSERT_EQ(RunTmaLoadSlabs(*map, start, ours, twin), cudaSuccess);
    EXPECT_EQ(std::memcmp(&ours, &twin, sizeof(ours)), 0);
    for (int i = 0; i < 2 * kBoxSide * kBoxSide; ++i) {
      const int slab = i / (kBoxSide * kBoxSide);
      const int r = i / kBoxSide % kBoxSide;
      const int64_t row = start.row + r;
      const int64_t column = (start.column + slab) * kBoxSide + i % kBoxSide;
      const bool inside = row >= 0 && row < rows && column >= 0 && column < columns;
      ASSERT_EQ(ours.slabs[slab].elements[SwizzledIndex(r, i % kBoxSide)],
                inside ? matrix[row * ld + column] : 0)
          << row << "," << column;
    }
  }
}

TEST_F(PtxTest, CpAsyncFillsWithZeros) {
  CopiedBytes source;
  for (int lane = 0; lane < 32; ++lane) {
    for (int i = 0; i < 16; ++i) source.bytes[lane][i] = static_cast<uint8_t>(lane * 16 + i + 1);
  }
  CopiedBytes copied = {};
  ASSERT_EQ(RunCpAsync(source, copied), cudaSuccess);
  for (int lane = 0; lane < 32; ++lane) {
    for (int i = 0; i < 16; ++i) {
      EXPECT_EQ(copied.bytes[lane][i], i < lane % 17 ? source.bytes[lane][i] : 0)
          << lane << " " << i;
    }
  }
}

TEST_F(PtxTest, LdmatrixHandsOutFragmentsAndStmatrixTakesThemBack) {
  FourMatrices matrices;
  for (int m = 0; m < 4; ++m) {
    for (int r = 0; r < 8; ++r) {
      for (int c = 0; c < 8; ++c) {
        matrices.elements[m][r][c] = static_cast<uint16_t>(m * 64 + r * 8 + c);
      }
    }
  }
  Fragments plain = {};
  Fragments transposed = {};
  Fragments turned = {};
  FourMatrices stored = {};
  ASSERT_EQ(RunLdmatrix(matrices, plain, transposed, turned, stored), cudaSuccess);
  EXPECT_EQ(std::memcmp(&stored, &matrices, sizeof(stored)), 0);
  for (int lane = 0; lane < 32; ++lane) {
    for (int m = 0; m < 4; ++m) {
      const int r = lane / 4;
      const int c = lane % 4 * 2;
      EXPECT_EQ(plain.lane[lane][m] & 0xffff, matrices.elements[m][r][c]);
      EXPECT_EQ(plain.lane[lane][m] >> 16, matrices.elements[m][r][c + 1]);
      EXPECT_EQ(transposed.lane[lane][m] & 0xffff, matrices.elements[m][c][r]);
      EXPECT_EQ(transposed.lane[lane][m] >> 16, matrices.elements[m][c + 1][r]);
      EXPECT_EQ(turned.lane[lane][m], transposed.lane[lane][m]) << "movmatrix";
    }
  }
}

TEST_F(PtxTest, MmaMultipliesWhatTheFragmentsHold) {
  MmaMatrices matrices = {};
  double expected[16][8] = {};
  // Small integers: every sum is exact.
  for (int i = 0; i < 16; ++i) {
    for (int k = 0; k < 16; ++k) {
      matrices.a[i][k] = ToBf16(static_cast<float>((i * 7 + k * 3) % 17 - 8)).bits;
    }
  }
  for (int k = 0; k < 16; ++k) {
    for (int j = 0; j < 8; ++j) {
      matrices.b[k][j] = ToBf16(static_cast<float>((k * 5 + j * 11) % 13 - 6)).bits;
    }
  }
  for (int i = 0; i < 16; ++i) {
    for (int j = 0; j < 8; ++j) {
      matrices.d[i][j] = static_cast<float>(i * 8 + j);
      expected[i][j] = matrices.d[i][j];
      for (int k = 0; k < 16; ++k) {
        expected[i][j] +=
            double{ToFloat(Bf16{matrices.a[i][k]})} * double{ToFloat(Bf16{matrices.b[k][j]})};
      }
    }
  }
  ASSERT_EQ(RunMma(matrices), cudaSuccess);
  for (int i = 0; i < 16; ++i) {
    for (int j = 0; j < 8; ++j) EXPECT_EQ(matrices.d[i][j], expected[i][j]) << i << "," << j;
  }
}

}  // namespace
}  // namespace tcgemm
