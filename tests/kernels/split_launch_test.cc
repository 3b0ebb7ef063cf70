// What cuda_launch.h says of a plan that splits K.
#include <gtest/gtest.h>

#include "kernels/cuda_launch.h"
#include "kernels/gpu_plan.h"
#include "kernels/split_k.h"
#include "tests/kernels/h200_limits.h"

namespace tcgemm {
namespace {

constexpr GemmShape kShape = {.m = 256, .n = 576, .k = 7168};
constexpr uintptr_t kOperands = 0x10000;
constexpr uintptr_t kWorkspace = 0x80000000;

// Of memory that is not there: nothing here reads it.
template <typename POINTER>
POINTER At(uintptr_t address) {
  return reinterpret_cast<POINTER>(address);
}

GemmProblem Problem() {
  GemmProblem problem;
  problem.a = {At<void*>(kOperands), kShape.m, kShape.k, kShape.k, DType::kBf16, false};
  problem.b = {At<void*>(kOperands), kShape.n, kShape.k, kShape.k, DType::kBf16, true};
  problem.d = {At<void*>(kOperands), kShape.m, kShape.n, kShape.n, DType::kBf16, false};
  problem.epilogue.alpha = 3;
  problem.nonfinite = At<uint32_t*>(kOperands);
  problem.workspace = {At<std::byte*>(kWorkspace), SplitWorkspaceBytes(kShape, kMaxSplits)};
  return problem;
}

TEST(SplitLaunchTest, TakesWhatChoosePlanChooses) {
  const GemmProblem problem = Problem();
  const Plan plan = *ChoosePlan(H200(), {&problem, 1});
  ASSERT_GT(plan.splits, 1) << plan.ToString();
  const absl::Status status = CheckLaunch(H200(), plan, {&problem, 1});
  EXPECT_TRUE(status.ok()) << status;
}

TEST(SplitLaunchTest, RefusesWhatWouldWriteElsewhere) {
  const GemmProblem problem = Problem();
  const Plan plan = *ChoosePlan(H200(), {&problem, 1});
  const auto refused = [&](const Plan& bad_plan, const std::vector<GemmProblem>& bad) {
    return CheckLaunch(H200(), bad_plan, bad).code() == absl::StatusCode::kInvalidArgument;
  };
  GemmProblem small = problem;
  small.workspace.bytes = SplitWorkspaceBytes(kShape, plan.splits) - 1;
  EXPECT_TRUE(refused(plan, {small}));
  GemmProblem askew = problem;
  askew.workspace.data += 16;
  EXPECT_TRUE(refused(plan, {askew}));
  EXPECT_TRUE(refused(plan, {problem, problem}));
  Plan bad = plan;
  bad.splits = kMaxSplits + 1;
  EXPECT_TRUE(refused(bad, {problem}));
  bad = plan;
  bad.splits = 0;
  EXPECT_TRUE(refused(bad, {problem}));
  bad = plan;
  ++bad.tiles;
  EXPECT_TRUE(refused(bad, {problem}));
  bad = plan;
  bad.kernel = KernelId::kTmaMma;
  EXPECT_TRUE(refused(bad, {problem}));
  for (const GpuTileEntry& entry : kWgmmaTiles) {
    if (entry.grouped) continue;
    bad = plan;
    bad.tile = entry.tile;
    bad.tiles = static_cast<int>(plan.splits * TileCount(kShape, entry.tile));
    EXPECT_TRUE(refused(bad, {problem})) << "a tile for one problem, or a swapped one";
  }
}

TEST(SplitLaunchTest, TheSecondHalfFinishesD) {
  const GemmProblem problem = Problem();
  const Plan plan = *ChoosePlan(H200(), {&problem, 1});
  const SplitReduceArguments reduce = ReduceArgumentsOf(plan, problem);
  EXPECT_EQ(reduce.count, plan.splits);
  EXPECT_EQ(reduce.parts, At<const float*>(kWorkspace));
  EXPECT_EQ(reduce.ld, SplitLd(kShape.n));
  EXPECT_EQ(reduce.part_elements, kShape.m * SplitLd(kShape.n));
  EXPECT_EQ(reduce.problem.d, problem.d.data);
  EXPECT_EQ(reduce.problem.nonfinite, problem.nonfinite);
  EXPECT_EQ(reduce.problem.alpha, 3);
  EXPECT_TRUE(reduce.problem.has_epilogue);
  EXPECT_FALSE(reduce.output_fp32);
}

}  // namespace
}  // namespace tcgemm
