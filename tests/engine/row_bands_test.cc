#include "server/engine/row_bands.h"

#include <gtest/gtest.h>

#include <limits>

namespace tcgemm {
namespace {

constexpr double kFast = 1e15;  // FLOPs per second

GemmProblem Problem(const GemmShape& shape) {
  GemmProblem problem;
  problem.a = {.rows = shape.m, .cols = shape.k, .ld = shape.k};
  problem.b = {.rows = shape.k, .cols = shape.n, .ld = shape.n};
  problem.d = {.rows = shape.m, .cols = shape.n, .ld = shape.n};
  return problem;
}

TEST(RowBandsTest, CoverEveryRowOnce) {
  for (const int64_t m : {1024, 2048, 2049, 4095, 4096, 5000, 100000}) {
    const std::vector<RowBand> bands = PlanBands(Problem({.m = m, .n = 8192, .k = 64}), {}, kFast);
    ASSERT_GE(bands.size(), 2u) << m;
    EXPECT_LE(bands.size(), static_cast<size_t>(kMostBands)) << m;
    int64_t next = 0;
    for (const RowBand& band : bands) {
      EXPECT_EQ(band.first, next);
      EXPECT_EQ(band.first % kBandRowUnit, 0);
      EXPECT_GT(band.rows, 0);
      next += band.rows;
    }
    EXPECT_EQ(next, m);
  }
}

TEST(RowBandsTest, NoneWhereTheyHideNothing) {
  EXPECT_EQ(PlanBands(Problem({.m = 4096, .n = 4096, .k = 4096}), {}, kFast).size(), 4u);
  EXPECT_EQ(PlanBands(Problem({.m = 2048, .n = 2048, .k = 2048}), {}, kFast).size(), 2u);
  EXPECT_TRUE(PlanBands(Problem({.m = 4096, .n = 4096, .k = 4096}), {.d = true}, kFast).empty())
      << "D stays";
  EXPECT_TRUE(PlanBands(Problem({.m = 2048, .n = 2047, .k = 64}), {}, kFast).empty())
      << "less than two bands";
  EXPECT_TRUE(PlanBands(Problem({.m = 128, .n = 1 << 20, .k = 64}), {}, kFast).empty())
      << "one tile high";
  EXPECT_TRUE(PlanBands(Problem({.m = 4096, .n = 4096, .k = 4096}), {}, 1e12).empty())
      << "the kernel takes 137 ms, the copy 0.7";
  const int64_t most = std::numeric_limits<int64_t>::max() / 8192 / 4;
  EXPECT_EQ(PlanBands(Problem({.m = most, .n = 8192, .k = 1}), {}, kFast).size(), 4u);
}

TEST(RowBandsTest, ABandHasItsRowsOfEverything) {
  std::byte memory[1];
  GemmProblem problem = Problem({.m = 512, .n = 40, .k = 30});
  problem.a.data = problem.b.data = problem.d.data = memory;
  problem.a.ld = 32;
  problem.d.ld = 64;
  problem.d.dtype = DType::kFp32;
  problem.epilogue.beta = 2;
  problem.epilogue.c = {.data = memory, .rows = 512, .cols = 40, .ld = 48, .dtype = DType::kBf16};
  problem.epilogue.bias = {.data = memory, .rows = 512, .cols = 1, .ld = 1, .dtype = DType::kFp32};
  const GemmProblem band = BandOf(problem, {.first = 128, .rows = 256});
  const auto offset = [&memory](const void* data) {
    return static_cast<const std::byte*>(data) - memory;
  };
  EXPECT_EQ(band.a.rows, 256);
  EXPECT_EQ(offset(band.a.data), 128 * 32 * 2);
  EXPECT_EQ(offset(band.b.data), 0);
  EXPECT_EQ(offset(band.epilogue.c.data), 128 * 48 * 2);
  EXPECT_EQ(offset(band.epilogue.bias.data), 128 * 4);
  EXPECT_EQ(band.epilogue.bias.rows, 256);
  EXPECT_EQ(offset(band.d.data), 128 * 64 * 4);
  EXPECT_EQ(band.d.rows, 256);

  problem.a = {.data = memory, .rows = 30, .cols = 512, .ld = 520, .transposed = true};
  const GemmProblem transposed = BandOf(problem, {.first = 128, .rows = 256});
  EXPECT_EQ(offset(transposed.a.data), 128 * 2);
  EXPECT_EQ(transposed.a.op_rows(), 256);
  EXPECT_EQ(transposed.a.op_cols(), 30);
}

TEST(RowBandsTest, EveryOperandComesOnce) {
  GemmProblem problem = Problem({.m = 512, .n = 40, .k = 30});
  for (const bool transposed : {false, true}) {
    for (const bool resident : {false, true}) {
      problem.a.transposed = transposed;
      const OnDevice on_device = {.a = resident, .c = true};
      const OnDevice before = BeforeBands(problem, on_device);
      const OnDevice with = WithBand(problem, on_device);
      EXPECT_EQ(!before.a + !with.a, resident ? 0 : 1);
      EXPECT_EQ(with.a, resident || transposed) << "an A of columns has no rows to bring";
      EXPECT_FALSE(before.b);
      EXPECT_TRUE(before.c);
      EXPECT_FALSE(before.bias);
      EXPECT_TRUE(with.b && with.c && with.bias);
    }
  }
}

}  // namespace
}  // namespace tcgemm
