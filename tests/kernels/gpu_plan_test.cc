#include "kernels/gpu_plan.h"

#include <gtest/gtest.h>

#include <vector>

#include "kernels/plan.h"
#include "tests/kernels/h200_limits.h"

namespace tcgemm {
namespace {

GemmProblem ProblemOf(const GemmShape& shape, DType output = DType::kBf16) {
  GemmProblem problem;
  problem.a = {nullptr, shape.m, shape.k, shape.k, DType::kBf16, false};
  problem.b = {nullptr, shape.k, shape.n, shape.n, DType::kBf16, false};
  problem.d = {nullptr, shape.m, shape.n, shape.n, output, false};
  return problem;
}

Plan PlanFor(const PlanLimits& limits, const std::vector<GemmShape>& shapes) {
  std::vector<GemmProblem> problems;
  for (const GemmShape& shape : shapes) problems.push_back(ProblemOf(shape));
  const absl::StatusOr<Plan> plan = ChoosePlan(limits, problems);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return plan.value_or(Plan());
}

TEST(GpuPlanTest, FewRowsGoToTilesWithAsFewColumns) {
  // Measured at N = K = 4096 on an H200: 1.13, 1.18, 1.13 and 0.95 of cuBLASLt; 0.68 of it and less
  // with tiles of 128 rows.
  const std::pair<int64_t, int> tiles[] = {{1, 8}, {16, 16}, {32, 32}, {64, 64}};
  for (const auto& [m, columns] : tiles) {
    const Plan plan = PlanFor(H200(), {{.m = m, .n = 4096, .k = 4096}});
    EXPECT_TRUE(plan.tile.swapped) << plan.ToString();
    EXPECT_EQ(plan.tile.n, columns) << plan.ToString();
  }
}

TEST(GpuPlanTest, LargeProductsGetLargeTilesAndSmallOnesSmallTiles) {
  EXPECT_GE(PlanFor(H200(), {{.m = 8192, .n = 8192, .k = 8192}}).tile.m, 128);
  const Plan small = PlanFor(H200(), {{.m = 64, .n = 64, .k = 64}});
  EXPECT_LE(small.tile.m * small.tile.n, 128 * 64);
  EXPECT_EQ(small.tiles, 1);
}

TEST(GpuPlanTest, CountsTheTilesOfAllProblems) {
  PlanLimits limits = H200();
  limits.kernels = {KernelId::kTmaMma};
  const Plan plan = PlanFor(limits, {{.m = 1, .n = 1, .k = 1}, {.m = 65, .n = 64, .k = 9}});
  EXPECT_EQ(plan.problems, 2);
  EXPECT_EQ(plan.tile.m, 64);
  EXPECT_EQ(plan.tiles, 1 + 2);
  EXPECT_EQ(plan.ToString(), "tma_mma 64x64x64 stages=4 tiles=3 problems=2 by=model");
}

TEST(GpuPlanTest, ABatchGetsATileCompiledForBatches) {
  for (const int count : {2, 64, 65, 96}) {
    const std::vector<GemmShape> shapes(count, {.m = 2048, .n = 2048, .k = 512});
    const Plan plan = PlanFor(H200(), shapes);
    EXPECT_LE(count, MaxProblems(plan.kernel));
    bool grouped = false;
    for (const GpuTileEntry& entry : UsableTiles(H200(), plan.kernel, true)) {
      grouped |= entry.tile == plan.tile && entry.grouped;
    }
    EXPECT_TRUE(grouped) << plan.ToString();
  }
}

TEST(GpuPlanTest, AnotherChipGetsItsOwnTiles) {
  PlanLimits limits = H200();
  limits.compute_capability = 120;
  limits.shared_bytes_per_block = 99 * 1024;
  limits.shared_bytes_per_multiprocessor = 100 * 1024;
  for (const GpuTileEntry& entry : UsableTiles(limits, KernelId::kTmaMma, false)) {
    EXPECT_EQ(entry.compute_capability, 120);
  }
  EXPECT_EQ(UsableTiles(limits, KernelId::kTmaMma, false).size(), 2u);
  EXPECT_TRUE(UsableTiles(limits, KernelId::kTmaWgmma, false).empty()) << "wgmma is sm_90a's";
  limits.compute_capability = 80;
  EXPECT_TRUE(UsableTiles(limits, KernelId::kTmaMma, false).empty()) << "no TMA before sm_90";
  EXPECT_FALSE(UsableTiles(limits, KernelId::kCpAsyncMma, false).empty());
}

TEST(GpuPlanTest, IsAFunctionOfItsArguments) {
  for (const int64_t m : {1, 63, 300, 5000}) {
    const GemmShape shape = {.m = m, .n = 777, .k = 4096};
    EXPECT_EQ(PlanFor(H200(), {shape}).ToString(), PlanFor(H200(), {shape}).ToString());
  }
}

TEST(GpuPlanTest, RefusesWhatAGpuCannotCount) {
  const std::vector<GemmProblem> long_k = {ProblemOf({.m = 1, .n = 1, .k = int64_t{1} << 31})};
  const absl::Status status = ChoosePlan(H200(), long_k).status();
  EXPECT_EQ(status.message(), "k is 2147483648; the limit on a GPU is 2147483647");
  const std::vector<GemmProblem> huge = {
      ProblemOf({.m = int64_t{1} << 30, .n = int64_t{1} << 30, .k = 1})};
  EXPECT_EQ(ChoosePlan(H200(), huge).status().code(), absl::StatusCode::kInvalidArgument);
  const std::vector<GemmProblem> many(97, ProblemOf({.m = 1, .n = 1, .k = 1}));
  EXPECT_EQ(ChoosePlan(H200(), many).status().message(),
            "a launch of 97 problems; the limit is 96");
  PlanLimits tiny = H200();
  tiny.shared_bytes_per_block = 1024;
  const std::vector<GemmProblem> one = {ProblemOf({.m = 1, .n = 1, .k = 1})};
  EXPECT_EQ(ChoosePlan(tiny, one).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(GpuPlanTest, NothingToComputeIsAPlanWithoutTiles) {
  EXPECT_EQ(PlanFor(H200(), {{.m = 0, .n = 5, .k = 3}}).tiles, 0);
}

TEST(GpuPlanTest, AClusterCountsAsOneTile) {
  const GpuTile pair = {.m = 128, .n = 256, .k = 64, .cluster = 2};
  EXPECT_EQ(TileCount({.m = 257, .n = 256, .k = 1}, pair), 2);
  const GpuTile four = {.m = 64, .n = 32, .k = 128, .swapped = true, .cluster_n = 4};
  EXPECT_EQ(TileCount({.m = 129, .n = 576, .k = 1}, four), 2 * 9);
}

TEST(GpuPlanTest, WgmmaTakesWhatIsLarge) {
  const Plan plan = PlanFor(H200(), {{.m = 4096, .n = 4096, .k = 4096}});
  EXPECT_EQ(plan.ToString(),
            "tma_wgmma 256x128x64 stages=4 cluster=1x2 tiles=256 problems=1 by=model");
}

TEST(GpuPlanTest, SimtIsNeverChosenBesideTensorCores) {
  PlanLimits limits = H200();
  limits.kernels = {KernelId::kCpAsyncMma, KernelId::kSimt};
  EXPECT_EQ(PlanFor(limits, {{.m = 1, .n = 1, .k = 1}}).kernel, KernelId::kCpAsyncMma);
}

TEST(GpuPlanTest, SimtHasOneTile) {
  PlanLimits limits = H200();
  limits.kernels = {KernelId::kSimt};
  EXPECT_EQ(PlanFor(limits, {{.m = 100, .n = 100, .k = 7}}).tile, kSimtTile);
}

}  // namespace
}  // namespace tcgemm
