// Raster, ring and epilogue of kernels/tile/, on the host.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <set>
#include <utility>
#include <vector>

#include "kernels/gpu_tiles.h"
#include "kernels/tile/epilogue.h"
#include "kernels/tile/operand_load.h"
#include "kernels/tile/raster.h"
#include "kernels/tile/ring.h"
#include "kernels/tile/turns.h"
#include "kernels/tile/warp_tile.h"
#include "matrix/bf16.h"

namespace tcgemm {
namespace {

TEST(RasterTest, VisitsEveryTileOnce) {
  for (const int group : {1, 8, 16}) {
    for (int rows = 1; rows <= 40; rows += 3) {
      for (int columns = 1; columns <= 20; columns += 4) {
        std::set<std::pair<int, int>> seen;
        for (int i = 0; i < rows * columns; ++i) {
          const TilePosition tile = RasterTile(i, rows, columns, group);
          ASSERT_TRUE(tile.row >= 0 && tile.row < rows && tile.column < columns);
          ASSERT_TRUE(seen.emplace(tile.row, tile.column).second) << rows << "x" << columns;
        }
      }
    }
  }
}

TEST(RasterTest, AWaveStaysInFewRowsAndColumns) {
  std::set<int> rows;
  std::set<int> columns;
  for (int i = 0; i < 264; ++i) {
    const TilePosition tile = RasterTile(i, 64, 64, kRasterGroupRows / 128);
    rows.insert(tile.row);
    columns.insert(tile.column);
  }
  EXPECT_EQ(rows.size(), 16u);
  EXPECT_EQ(columns.size(), 17u);
}

TEST(RasterTest, DoesNotOverflowNearTheLimit) {
  const int rows = 40000;
  const int columns = 50000;  // 2,000,000,000 tiles
  const TilePosition last = RasterTile(rows * columns - 1, rows, columns, 16);
  EXPECT_EQ(last.row, rows - 1);
  EXPECT_EQ(last.column, columns - 1);
}

TEST(RasterTest, TilesCoverTheMatrixAndHardlyMore) {
  for (const int extent : {8, 64, 128, 192, 256, 512}) {
    for (const int size : {1, 7, 8, 63, 64, 65, 127, 128, 129, 255, 257, 511, 513, 4097, 4100}) {
      int covered = 0;
      for (int tile = 0; tile < CeilDiv(size, extent); ++tile) {
        const int start = WithinSize(tile, extent, size);
        EXPECT_EQ(start % 8, 0);
        EXPECT_LE(start, covered) << "a gap, " << size << " in tiles of " << extent;
        covered = start + extent;
      }
      EXPECT_GE(covered, size);
      if (size > extent) {
        EXPECT_LT(covered - size, 8) << size << " in tiles of " << extent;
      }
    }
  }
  EXPECT_EQ(WithinSize(0x7fffffff / 256, 256, 0x7fffffff), 0x7fffffff - 255);
}

TEST(RasterTest, FindsTheProblemOfATileAndPassesEmptyOnes) {
  // Tiles: 3, none, 1, none, none, 5.
  std::vector<LaunchProblem> problems(6);
  const int first[] = {0, 3, 3, 4, 4, 4};
  for (int i = 0; i < 6; ++i) problems[i].first_tile = first[i];
  const int expected[] = {0, 0, 0, 2, 5, 5, 5, 5, 5};
  for (int tile = 0; tile < 9; ++tile) {
    EXPECT_EQ(FindProblem(problems.data(), 6, tile), expected[tile]) << "tile " << tile;
  }
  EXPECT_EQ(FindProblem(problems.data(), 1, 2), 0);
}

TEST(RingTest, ParityIsThatOfTheRound) {
  RingPosition<3> position;
  for (int use = 0; use < 20; ++use, position.Advance()) {
    EXPECT_EQ(position.stage, use % 3);
    EXPECT_EQ(position.parity, static_cast<uint32_t>(use / 3 % 2));
  }
}

TEST(RingTest, SkippedUsesCount) {
  for (const int uses : {0, 1, 2, 3, 4, 5, 6, 7, 100}) {
    RingPosition<3> skipped;
    RingPosition<3> advanced;
    for (int start = 0; start < 7; ++start, skipped.Advance(), advanced.Advance()) {
      RingPosition<3> walked = advanced;
      for (int i = 0; i < uses; ++i) walked.Advance();
      RingPosition<3> jumped = skipped;
      jumped.Skip(uses);
      EXPECT_EQ(jumped.stage, walked.stage) << start << " " << uses;
      EXPECT_EQ(jumped.parity, walked.parity) << start << " " << uses;
    }
  }
}

TEST(TurnsTest, TilesGoToTheGroupsInTurn) {
  Turns<true> first = {.group = 0};
  Turns<true> second = {.group = 1};
  Turns<false> all = {.group = 1};
  for (int tile = 0; tile < 7; ++tile) {
    EXPECT_EQ(first.IsMine(), tile % 2 == 0);
    EXPECT_EQ(second.IsMine(), tile % 2 == 1);
    EXPECT_TRUE(all.IsMine());
  }
}

TEST(RingTest, MayBeLongerThanItsType) {
  RingPosition<3> position;
  for (int use = 0; use < 20; ++use, position.Advance(5)) {
    EXPECT_EQ(position.stage, use % 5);
    EXPECT_EQ(position.parity, static_cast<uint32_t>(use / 5 % 2));
  }
}

TEST(EpilogueTest, RoundsAsTheReferenceDoes) {
  for (uint32_t upper = 0; upper < 0x10000; ++upper) {
    for (const uint32_t lower : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      const float value = std::bit_cast<float>(upper << 16 | lower);
      if (std::isnan(value)) {
        ASSERT_EQ(Bf16Output(value), kCanonicalNanBf16.bits);
        ASSERT_EQ(Fp32Output(value), kCanonicalNanFp32Bits);
      } else {
        ASSERT_EQ(Bf16Output(value), ToBf16(value).bits) << value;
        ASSERT_EQ(Fp32Output(value), upper << 16 | lower);
      }
    }
  }
}

TEST(EpilogueTest, SeesNonfiniteOutputsAfterRounding) {
  const float largest = std::numeric_limits<float>::max();
  EXPECT_FALSE(IsNonfiniteFp32(Fp32Output(largest)));
  EXPECT_TRUE(IsNonfiniteBf16(Bf16Output(largest))) << "rounds up to Inf";
  EXPECT_TRUE(IsNonfiniteBf16(Bf16Output(std::nanf(""))));
  EXPECT_TRUE(IsNonfiniteFp32(Fp32Output(-std::numeric_limits<float>::infinity())));
  EXPECT_FALSE(IsNonfiniteBf16(Bf16Output(0x1p127f)));
}

// Every element of a tile is one warp's, of one thread's d.
TEST(WarpTileTest, WarpsCoverTheTile) {
  constexpr GpuTile kTile = kGpuTiles[2].tile;
  using Warp = WarpTile<kTile>;
  std::set<std::pair<int, int>> seen;
  for (int warp = 0; warp < kTile.threads() / 32; ++warp) {
    const TilePosition origin = Warp::Origin(warp);
    EXPECT_EQ(origin.row % Warp::kRows, 0);
    EXPECT_LT(origin.row, kTile.m);
    EXPECT_LT(origin.column, kTile.n);
    seen.emplace(origin.row, origin.column);
  }
  EXPECT_EQ(static_cast<int>(seen.size()) * Warp::kRows * Warp::kColumns, kTile.m * kTile.n);
}

TEST(GpuTilesTest, FitTheirChips) {
  for (const GpuTileEntry& entry : kGpuTiles) {
    const size_t limit = entry.compute_capability == 120 ? 99 * 1024 : 227 * 1024;
    EXPECT_LE(entry.tile.shared_bytes(), limit) << entry.tile.m << "x" << entry.tile.n;
    EXPECT_LE(entry.tile.threads(), 1024);
    EXPECT_EQ(entry.tile.stage_bytes() % 1024, 0u);
  }
  for (const GpuTileEntry& entry : kWgmmaTiles) {
    EXPECT_LE(WgmmaSharedBytes(entry.tile), size_t{227 * 1024})
        << entry.tile.m << "x" << entry.tile.n;
    for (const bool b_is_k_major : {false, true}) {
      const auto stages = static_cast<size_t>(WgmmaStages(entry.tile, b_is_k_major));
      const size_t bytes = WgmmaStageBytes(entry.tile, b_is_k_major);
      EXPECT_EQ(bytes % 1024, 0u) << "where the swizzle's pattern starts";
      EXPECT_LE(stages * bytes, entry.tile.stages * entry.tile.stage_bytes());
      EXPECT_LE(2 * 8 * stages, 128u + 256u) << "barriers";
    }
    for (const auto& [extent, parts] : {std::pair(entry.tile.m, entry.tile.cluster_n),
                                        std::pair(entry.tile.n, entry.tile.cluster)}) {
      const int rows = KMajorPartRows(extent, entry.tile.k, parts);
      EXPECT_LE(rows, 256) << "of a box of TMA";
      if (parts == 1) continue;
      // The parts make up a stage, and each begins where the swizzle's pattern does.
      EXPECT_EQ(rows * parts, extent * (entry.tile.k / 64));
      EXPECT_EQ(rows % 8, 0);
      EXPECT_EQ(parts % (entry.tile.k / 64), 0) << "a part lies in one slab";
      EXPECT_EQ(MnMajorPartK(extent, entry.tile.k, parts) % 8, 0);
    }
  }
}

TEST(GpuTilesTest, PartsAcrossKAreWholeBoxesOrPartsOfK) {
  EXPECT_EQ(MnMajorPartK(256, 64, 2), 64);
  EXPECT_EQ(MnMajorPartK(160, 64, 2), 32);
  EXPECT_EQ(MnMajorPartK(64, 128, 4), 32);
  EXPECT_EQ(MnMajorPartK(64, 128, 1), 128);
}

TEST(GpuTilesTest, AnH200HoldsFewerClustersOfFourThanItsMultiprocessorsWould) {
  EXPECT_EQ(ClustersAtOnce(132, 1), 132);
  EXPECT_EQ(ClustersAtOnce(132, 2), 66);
  EXPECT_EQ(ClustersAtOnce(132, 4), 30);
  EXPECT_EQ(ClustersAtOnce(132, 8), 15);
  EXPECT_EQ(ClustersAtOnce(1, 4), 1);
}

// Whoever loads for me is in a row or a column with me, and the other way round.
template <GpuTile TILE>
void ExpectSharersLoadForEachOther() {
  for (int rank = 0; rank < TILE.blocks(); ++rank) {
    const ClusterPlace<TILE> place = {rank};
    EXPECT_EQ(place.Row() + place.Column() * TILE.cluster, rank);
    std::set<uint32_t> sharers;
    for (int i = 0; i < place.kSharers; ++i) sharers.insert(place.Sharer(i));
    EXPECT_EQ(static_cast<int>(sharers.size()), place.kSharers);
    for (int other = 0; other < TILE.blocks(); ++other) {
      const ClusterPlace<TILE> sender = {other};
      const bool sends = ((sender.BlocksOfA() | sender.BlocksOfB()) >> rank & 1) != 0;
      EXPECT_EQ(sends, sharers.count(static_cast<uint32_t>(other)) == 1) << other << " to " << rank;
    }
  }
}

TEST(ClusterPlaceTest, SharersLoadForEachOther) {
  ExpectSharersLoadForEachOther<GpuTile{.cluster = 1}>();
  ExpectSharersLoadForEachOther<GpuTile{.cluster = 2}>();
  ExpectSharersLoadForEachOther<GpuTile{.cluster = 1, .cluster_n = 4}>();
  ExpectSharersLoadForEachOther<GpuTile{.cluster = 2, .cluster_n = 3}>();
  const ClusterPlace<GpuTile{.cluster = 2, .cluster_n = 2}> last = {3};
  EXPECT_EQ(last.BlocksOfA(), 0b1010);
  EXPECT_EQ(last.BlocksOfB(), 0b1100);
}

}  // namespace
}  // namespace tcgemm
