#include "kernels/plan.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace tcgemm {
namespace {

GemmProblem Problem(DType output) {
  static char memory[64];
  GemmProblem problem;
  problem.a = {memory, 2, 3, 3, DType::kBf16, false};
  problem.b = {memory, 3, 4, 4, DType::kBf16, false};
  problem.d = {memory, 2, 4, 4, output, false};
  return problem;
}

TEST(PlanTest, TakesTheBestKernel) {
  const GemmProblem problems[] = {Problem(DType::kBf16), Problem(DType::kBf16)};
  const PlanLimits limits{.kernels = {KernelId::kCpuOnednnFp32, KernelId::kCpuPlain}};
  const absl::StatusOr<Plan> plan = ChoosePlan(limits, problems);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->kernel, KernelId::kCpuOnednnFp32);
  EXPECT_EQ(plan->ToString(), "cpu_onednn_fp32 panel=16 problems=2");
}

TEST(PlanTest, RefusesWhatNoLaunchCanBe) {
  const PlanLimits limits{.kernels = {KernelId::kCpuPlain}};
  EXPECT_TRUE(absl::IsInvalidArgument(ChoosePlan(limits, {}).status()));
  const GemmProblem mixed[] = {Problem(DType::kBf16), Problem(DType::kFp32)};
  EXPECT_TRUE(absl::IsInvalidArgument(ChoosePlan(limits, mixed).status()));
  EXPECT_TRUE(absl::IsFailedPrecondition(ChoosePlan({}, {mixed, 1}).status()));
}

TEST(PlanTest, KernelsHaveDistinctNames) {
  std::set<std::string> names;
  for (KernelId kernel : AllKernels()) names.insert(std::string(KernelName(kernel)));
  EXPECT_EQ(names.size(), AllKernels().size());
  EXPECT_TRUE(names.contains("cpu_plain"));
}

// Metrics have a series for each of AllKernels(), and no other.
TEST(PlanTest, AllKernelsIsWhatThisBuildCanRun) {
  std::set<KernelId> all;
  for (KernelId kernel : AllKernels()) all.insert(kernel);
  int named = 0;
  while (KernelName(static_cast<KernelId>(named)) != "?") ++named;
  for (int i = 0; i < named; ++i) {
    const auto kernel = static_cast<KernelId>(i);
#ifndef TCGEMM_CUDA
    if (IsGpuKernel(kernel)) continue;
#endif
    if (KernelName(kernel).starts_with("cpu_onednn")) continue;  // optional, and unknown here
    EXPECT_TRUE(all.contains(kernel)) << KernelName(kernel);
  }
}

}  // namespace
}  // namespace tcgemm
