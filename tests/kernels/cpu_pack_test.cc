#include "kernels/cpu_pack.h"

#include <gtest/gtest.h>

#include <bit>
#include <vector>

#include "matrix/bf16.h"

namespace tcgemm {
namespace {

TEST(CpuPackTest, StoreBf16IsToBf16ForAllUpperHalves) {
  for (uint32_t low : {0x0000u, 0x0001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
    std::vector<float> source(65536);
    std::vector<uint16_t> stored(65536);
    for (uint32_t high = 0; high < 65536; ++high) {
      source[high] = std::bit_cast<float>(high << 16 | low);
    }
    EXPECT_TRUE(StoreBf16(source.data(), 65536, stored.data()));
    for (uint32_t high = 0; high < 65536; ++high) {
      const uint32_t bits = high << 16 | low;
      const bool nan = (bits & 0x7fffffff) > 0x7f800000;
      const uint16_t expected = nan ? 0x7fc0 : ToBf16(std::bit_cast<float>(bits)).bits;
      ASSERT_EQ(stored[high], expected) << std::hex << bits;
    }
  }
}

TEST(CpuPackTest, StoresReportNonfiniteResultsOnly) {
  const std::vector<float> finite = {1.0f, -0x1.fep127f, 0.0f};
  const std::vector<float> rounds_up = {1.0f, 0x1.fffffep127f, 0.0f};
  uint16_t narrow[3];
  uint32_t wide[3];
  EXPECT_FALSE(StoreBf16(finite.data(), 3, narrow));
  EXPECT_TRUE(StoreBf16(rounds_up.data(), 3, narrow));
  EXPECT_FALSE(StoreFp32(rounds_up.data(), 3, wide));
  const float nan = std::bit_cast<float>(0xffc12345u);
  EXPECT_TRUE(StoreFp32(&nan, 1, wide));
  EXPECT_EQ(wide[0], kCanonicalNanFp32Bits);
}

TEST(CpuPackTest, PacksPadsAndFindsSubnormals) {
  constexpr int64_t kLd = 53;
  std::vector<uint16_t> source(kLd * kLd, 0xffff);
  for (int i = 0; i < 37; ++i) {
    for (int j = 0; j < 41; ++j) source[i * kLd + j] = static_cast<uint16_t>(0x3f80 + i * 41 + j);
  }
  source[5 * kLd + 40] = 0x0001;
  source[6 * kLd + 0] = 0x8000;  // zero
  source[7 * kLd + 1] = 0x0080;  // the least normal
  source[36 * kLd + 3] = 0x807f;
  std::vector<uint16_t> rows(40 * 64, 1), columns(48 * 64, 1);
  std::vector<uint8_t> row_flags(40), column_flags(48);
  EXPECT_TRUE(PackRows(source.data(), {kLd, 37, 41, 40, 64}, rows.data(), row_flags.data()));
  EXPECT_TRUE(
      PackColumns(source.data(), {kLd, 41, 37, 48, 64}, columns.data(), column_flags.data()));
  for (int i = 0; i < 40; ++i) {
    for (int j = 0; j < 64; ++j) {
      const bool inside = i < 37 && j < 41;
      ASSERT_EQ(rows[i * 64 + j], inside ? source[i * kLd + j] : 0) << i << "," << j;
    }
  }
  for (int i = 0; i < 48; ++i) {
    for (int j = 0; j < 64; ++j) {
      const bool inside = i < 41 && j < 37;
      ASSERT_EQ(columns[i * 64 + j], inside ? source[j * kLd + i] : 0) << i << "," << j;
    }
  }
  for (int i = 0; i < 37; ++i) EXPECT_EQ(row_flags[i] != 0, i == 5 || i == 36) << i;
  for (int j = 0; j < 41; ++j) EXPECT_EQ(column_flags[j] != 0, j == 40 || j == 3) << j;
}

TEST(CpuPackTest, WidenIsExact) {
  std::vector<uint16_t> source(65536);
  std::vector<float> wide(65536);
  for (int i = 0; i < 65536; ++i) source[i] = static_cast<uint16_t>(i);
  Widen(source.data(), 65536, wide.data());
  for (uint32_t i = 0; i < 65536; ++i) ASSERT_EQ(std::bit_cast<uint32_t>(wide[i]), i << 16);
}

}  // namespace
}  // namespace tcgemm
