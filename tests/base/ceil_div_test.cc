#include "base/ceil_div.h"

#include <gtest/gtest.h>

#include <limits>

namespace tcgemm {
namespace {

TEST(CeilDivTest, RoundsUpToWholePieces) {
  EXPECT_EQ(CeilDiv(0, 8), 0);
  EXPECT_EQ(CeilDiv(1, 8), 1);
  EXPECT_EQ(CeilDiv(8, 8), 1);
  EXPECT_EQ(CeilDiv(9, 8), 2);
}

TEST(CeilDivTest, TheLargestSizeDoesNotOverflow) {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(CeilDiv(kMax, 1), kMax);
  EXPECT_EQ(CeilDiv(kMax, 2), kMax / 2 + 1);
  EXPECT_EQ(CeilDiv(kMax, kMax), 1);
}

}  // namespace
}  // namespace tcgemm
