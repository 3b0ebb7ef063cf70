// The way from a matrix to mma's fragments, emulated: what TMA or cp.async puts where, what
// ldmatrix reads, which element each thread then holds; and the banks that each read touches.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <set>
#include <vector>

#include "kernels/tile/fragments.h"
#include "kernels/tile/swizzle.h"

namespace tcgemm {
namespace {

constexpr int kExtent = 128;

// A tile as shared memory holds it, one 16-bit element a place. Element (mn, k) is named mn·K + k.
template <bool K_MAJOR, int K>
std::vector<uint16_t> FilledTile() {
  std::vector<uint16_t> tile(kExtent * K);
  for (int mn = 0; mn < kExtent; ++mn) {
    for (int k = 0; k < K; ++k) {
      const int row = K_MAJOR ? mn : k;
      const int column = K_MAJOR ? k : mn % kBoxElements;
      const uint32_t box = K_MAJOR ? 0 : mn / kBoxElements * K * kBoxRowBytes;
      const uint32_t at = box + SwizzledOffset < K_MAJOR
                              ? K * 2
                              : kBoxRowBytes > (row, column / 8) + column % 8 * 2;
      tile[at / 2] = static_cast<uint16_t>(mn * K + k);
    }
  }
  return tile;
}

using Registers = std::array<std::array<uint16_t, 2>, 4>;

// What `thread` holds after ldmatrix.x4 (.trans), as the PTX ISA says.
Registers Ldmatrix(const std::vector<uint16_t>& tile, const std::array<uint32_t, 32>& rows,
                   bool transposed, int thread) {
  Registers registers;
  for (int matrix = 0; matrix < 4; ++matrix) {
    for (int half = 0; half < 2; ++half) {
      const int across = 2 * (thread % 4) + half;
      const int row = transposed ? across : thread / 4;
      const int column = transposed ? thread / 4 : across;
      registers[matrix][half] = tile[rows[matrix * 8 + row] / 2 + column];
    }
  }
  return registers;
}

// Where register `index` of a fragment lies in its 16x16 block: rows of op(A), columns of op(B).
template <Operand OPERAND>
std::pair<int, int> PlaceOfRegister(int thread, int index, int half) {
  const int group = thread / 4;
  const int k = 2 * (thread % 4) + half;
  if (OPERAND == Operand::kA) return {group + index % 2 * 8, k + index / 2 * 8};
  return {group + index / 2 * 8, k + index % 2 * 8};
}

template <Operand OPERAND, bool K_MAJOR, int K, int WARP_EXTENT>
void ExpectFragments() {
  const std::vector<uint16_t> tile = FilledTile<K_MAJOR, K>();
  for (int mn = 0; mn < kExtent; mn += WARP_EXTENT) {
    for (int block = 0; block < WARP_EXTENT / 16; ++block) {
      for (int step = 0; step < K / 16; ++step) {
        std::array<uint32_t, 32> rows;
        for (int lane = 0; lane < 32; ++lane) {
          rows[lane] =
              BlockOffset<K_MAJOR, K>(LaneOffset<OPERAND, K_MAJOR, K>(mn, lane), block, step);
        }
        for (int thread = 0; thread < 32; ++thread) {
          const Registers held = Ldmatrix(tile, rows, !K_MAJOR, thread);
          for (int i = 0; i < 8; ++i) {
            const auto [at_mn, at_k] = PlaceOfRegister<OPERAND>(thread, i / 2, i % 2);
            ASSERT_EQ(held[i / 2][i % 2], (mn + block * 16 + at_mn) * K + step * 16 + at_k)
                << "mn " << mn << " block " << block << " step " << step << " thread " << thread
                << " register " << i / 2;
          }
        }
      }
    }
  }
}

TEST(FragmentsTest, EveryThreadHoldsWhatMmaWants) {
  ExpectFragments<Operand::kA, true, 64, 64>();
  ExpectFragments<Operand::kA, false, 64, 64>();
  ExpectFragments<Operand::kB, true, 64, 64>();
  ExpectFragments<Operand::kB, false, 64, 64>();
  ExpectFragments<Operand::kA, true, 32, 64>();
  ExpectFragments<Operand::kA, false, 32, 64>();
  ExpectFragments<Operand::kB, true, 32, 64>();
  ExpectFragments<Operand::kB, false, 32, 64>();
  ExpectFragments<Operand::kA, true, 64, 32>();
  ExpectFragments<Operand::kA, false, 64, 32>();
  ExpectFragments<Operand::kB, true, 64, 32>();
  ExpectFragments<Operand::kB, false, 64, 32>();
}

// Turns that shared memory takes to serve the 8 rows of one matrix: the most that any bank has.
int Turns(const std::array<uint32_t, 8>& rows) {
  std::array<int, 32> used = {};
  int most = 0;
  for (const uint32_t row : rows) {
    for (uint32_t word = 0; word < 4; ++word) most = std::max(most, ++used[(row / 4 + word) % 32]);
  }
  return most;
}

template <Operand OPERAND, bool K_MAJOR, int K>
void ExpectNoConflicts() {
  for (int block = 0; block < 4; ++block) {
    for (int step = 0; step < K / 16; ++step) {
      for (int matrix = 0; matrix < 4; ++matrix) {
        std::array<uint32_t, 8> rows;
        for (int i = 0; i < 8; ++i) {
          rows[i] = BlockOffset<K_MAJOR, K>(LaneOffset<OPERAND, K_MAJOR, K>(0, matrix * 8 + i),
                                            block, step);
        }
        ASSERT_EQ(Turns(rows), 1) << "block " << block << " step " << step;
      }
    }
  }
}

TEST(FragmentsTest, NoReadMeetsABankTwice) {
  ExpectNoConflicts<Operand::kA, true, 64>();
  ExpectNoConflicts<Operand::kA, false, 64>();
  ExpectNoConflicts<Operand::kB, true, 64>();
  ExpectNoConflicts<Operand::kB, false, 64>();
  ExpectNoConflicts<Operand::kA, true, 32>();
  ExpectNoConflicts<Operand::kB, true, 32>();
}

template <int ROW_BYTES>
int TurnsOfColumn(int chunk, bool swizzled, int row_bytes = ROW_BYTES) {
  std::array<uint32_t, 8> rows;
  for (int i = 0; i < 8; ++i) {
    rows[i] = swizzled ? SwizzledOffset<ROW_BYTES>(i, chunk)
                       : static_cast<uint32_t>(i * row_bytes + chunk * kChunkBytes);
  }
  return Turns(rows);
}

// The table of docs/KERNELS.md, "Banks".
TEST(SwizzleTest, TurnsOfAReadDownAColumn) {
  for (int chunk = 0; chunk < 8; ++chunk) {
    EXPECT_EQ(TurnsOfColumn<128>(chunk, false), 8);
    EXPECT_EQ(TurnsOfColumn<128>(chunk, true), 1);
    EXPECT_EQ(TurnsOfColumn<128>(chunk, false, 128 + 16), 1) << "padding instead";
  }
  for (int chunk = 0; chunk < 4; ++chunk) {
    EXPECT_EQ(TurnsOfColumn<64>(chunk, false), 4);
    EXPECT_EQ(TurnsOfColumn<64>(chunk, true), 1);
    EXPECT_EQ(TurnsOfColumn<64>(chunk, false, 64 + 16), 1) << "padding instead";
  }
}

template <int ROW_BYTES>
void ExpectBijection() {
  std::set<uint32_t> seen;
  for (int row = 0; row < 64; ++row) {
    for (int chunk = 0; chunk < ROW_BYTES / kChunkBytes; ++chunk) {
      const uint32_t offset = SwizzledOffset<ROW_BYTES>(row, chunk);
      EXPECT_EQ(offset / ROW_BYTES, static_cast<uint32_t>(row)) << "a chunk stays in its row";
      EXPECT_TRUE(seen.insert(offset).second);
    }
  }
}

TEST(SwizzleTest, IsABijectionWithinRows) {
  ExpectBijection<64>();
  ExpectBijection<128>();
}

// CU_TENSOR_MAP_SWIZZLE_128B XORs address bits 7-9 onto bits 4-6, _64B bits 7-8 onto bits 4-5.
TEST(SwizzleTest, IsTheEnginesPattern) {
  for (int row = 0; row < 32; ++row) {
    for (int chunk = 0; chunk < 8; ++chunk) {
      const uint32_t plain = row * 128 + chunk * 16;
      EXPECT_EQ(SwizzledOffset<128>(row, chunk), plain ^ ((plain >> 7 & 7) << 4));
    }
    for (int chunk = 0; chunk < 4; ++chunk) {
      const uint32_t plain = row * 64 + chunk * 16;
      EXPECT_EQ(SwizzledOffset<64>(row, chunk), plain ^ ((plain >> 7 & 3) << 4));
    }
  }
}

}  // namespace
}  // namespace tcgemm
