#include "kernels/split_k.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "kernels/gpu_plan.h"
#include "kernels/plan_table.h"
#include "tests/kernels/h200_limits.h"

namespace tcgemm {
namespace {

int64_t RoundUp(int64_t value) { return (value + 63) / 64 * 64; }

GemmProblem ProblemOf(const GemmShape& shape, bool a_transposed = false, bool b_transposed = true) {
  // Never read: what counts is how far apart things lie.
  static std::byte memory[1 << 20];
  GemmProblem problem;
  problem.a = {memory, shape.m, shape.k, RoundUp(shape.k), DType::kBf16, false};
  if (a_transposed) problem.a = {memory, shape.k, shape.m, RoundUp(shape.m), DType::kBf16, true};
  problem.b = {memory, shape.k, shape.n, RoundUp(shape.n), DType::kBf16, false};
  if (b_transposed) problem.b = {memory, shape.n, shape.k, RoundUp(shape.k), DType::kBf16, true};
  problem.d = {memory, shape.m, shape.n, RoundUp(shape.n), DType::kBf16, false};
  return problem;
}

GemmProblem WithRoom(GemmProblem problem, size_t bytes = size_t{1} << 30) {
  problem.workspace = {static_cast<std::byte*>(problem.d.data), bytes};
  return problem;
}

Plan PlanFor(const std::vector<GemmProblem>& problems, const PlanLimits& limits = H200()) {
  const absl::StatusOr<Plan> plan = ChooseGpuPlan(limits, problems, PlanTable());
  EXPECT_TRUE(plan.ok()) << plan.status();
  return plan.value_or(Plan());
}

// Few tiles, and a K worth sharing.
constexpr GemmShape kFewTiles = {.m = 256, .n = 576, .k = 7168};

TEST(SplitPartsTest, CoverKOnceInWholeSteps) {
  for (const int64_t k : {128, 129, 1000, 7168, 7169}) {
    const int most = static_cast<int>(std::min<int64_t>(kMaxSplits, (k + 63) / 64));
    for (int splits = 2; splits <= most; ++splits) {
      for (const bool a_transposed : {false, true}) {
        for (const bool b_transposed : {false, true}) {
          const GemmProblem whole = ProblemOf({.m = 5, .n = 7, .k = k}, a_transposed, b_transposed);
          std::byte workspace[1];
          const SplitParts parts(whole, splits, workspace);
          ASSERT_EQ(parts.problems().size(), static_cast<size_t>(splits));
          int64_t at = 0;
          for (int i = 0; i < splits; ++i) {
            const GemmProblem& part = parts.problems()[i];
            EXPECT_EQ(part.shape().m, 5);
            EXPECT_EQ(part.shape().n, 7);
            EXPECT_GT(part.shape().k, 0);
            const int64_t a_offset = a_transposed ? at * whole.a.ld : at;
            const int64_t b_offset = b_transposed ? at : at * whole.b.ld;
            EXPECT_EQ(part.a.data, static_cast<const std::byte*>(whole.a.data) + 2 * a_offset);
            EXPECT_EQ(part.b.data, static_cast<const std::byte*>(whole.b.data) + 2 * b_offset);
            EXPECT_EQ(part.d.data, workspace + i * SplitWorkspaceBytes({5, 7, k}, 1));
            EXPECT_EQ(part.d.dtype, DType::kFp32);
            EXPECT_TRUE(part.epilogue.is_default());
            EXPECT_EQ(at % kSplitStep, 0);
            at += part.shape().k;
          }
          EXPECT_EQ(at, k);
        }
      }
    }
  }
}

TEST(SplitPartsTest, SumsTakeWhatTheySay) {
  EXPECT_EQ(SplitWorkspaceBytes({.m = 3, .n = 33, .k = 1}, 4), size_t{4} * 3 * 64 * 4);
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  EXPECT_EQ(SplitWorkspaceBytes({.m = kMost, .n = kMost, .k = 1}, 16),
            std::numeric_limits<size_t>::max());
}

TEST(SplitPlanTest, SplitsWhereTilesAreFewAndThereIsRoom) {
  const Plan plan = PlanFor({WithRoom(ProblemOf(kFewTiles))});
  EXPECT_GT(plan.splits, 1) << plan.ToString();
  EXPECT_EQ(plan.problems, 1);
  EXPECT_EQ(plan.kernel, KernelId::kTmaWgmma);
  EXPECT_EQ(plan.tiles, plan.splits * TileCount(kFewTiles, plan.tile));
  EXPECT_NE(plan.ToString().find(" splits="), std::string::npos) << plan.ToString();
  EXPECT_EQ(plan.ToString(), PlanFor({WithRoom(ProblemOf(kFewTiles))}).ToString());
  const size_t fewer = SplitWorkspaceBytes(kFewTiles, plan.splits - 1);
  EXPECT_LT(PlanFor({WithRoom(ProblemOf(kFewTiles), fewer)}).splits, plan.splits);
}

TEST(SplitPlanTest, SplitsNothingElse) {
  const GemmProblem few = ProblemOf(kFewTiles);
  EXPECT_EQ(PlanFor({few}).splits, 1) << "nobody asked for it";
  EXPECT_EQ(PlanFor({WithRoom(few, SplitWorkspaceBytes(kFewTiles, 2) - 1)}).splits, 1);
  EXPECT_EQ(PlanFor({WithRoom(few), WithRoom(few)}).splits, 1) << "one of several";
  EXPECT_EQ(PlanFor({WithRoom(ProblemOf({.m = 8192, .n = 8192, .k = 8192}))}).splits, 1);
  EXPECT_EQ(PlanFor({WithRoom(ProblemOf({.m = 64, .n = 64, .k = 64}))}).splits, 1);
  EXPECT_EQ(PlanFor({WithRoom(ProblemOf({.m = 0, .n = 64, .k = 6400}))}).splits, 1);
  GemmProblem no_product = WithRoom(few);
  no_product.epilogue.alpha = 0;
  EXPECT_EQ(PlanFor({no_product}).splits, 1);
  PlanLimits older = H200();
  older.kernels = {KernelId::kTmaMma};
  EXPECT_EQ(PlanFor({WithRoom(few)}, older).splits, 1);
}

}  // namespace
}  // namespace tcgemm
