#include "kernels/plan_table.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "kernels/gpu_plan.h"
#include "tests/kernels/h200_limits.h"

namespace tcgemm {
namespace {

constexpr GemmShape kShape = {.m = 4096, .n = 4096, .k = 4096};

// A·Bᵀ.
GemmProblem ProblemOf(const GemmShape& shape, DType output = DType::kBf16) {
  GemmProblem problem;
  problem.a = {nullptr, shape.m, shape.k, shape.k, DType::kBf16, false};
  problem.b = {nullptr, shape.n, shape.k, shape.k, DType::kBf16, true};
  problem.d = {nullptr, shape.m, shape.n, shape.n, output, false};
  return problem;
}

// A tile that the model would not take for kShape.
PlanTableRow RowOf(const GemmShape& shape) {
  return {.shape = shape, .b_transposed = true, .tile = kWgmmaTiles.back().tile};
}

PlanTable TableOf(absl::Span<const PlanTableRow> rows) {
  return {
      .compute_capability = 90, .multiprocessors = 132, .tiles = TilesFingerprint(), .rows = rows};
}

PlanOrigin OriginOf(const PlanTable& table, const std::vector<GemmProblem>& problems,
                    const PlanLimits& limits = H200()) {
  const absl::StatusOr<Plan> plan = ChooseGpuPlan(limits, problems, table);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return plan.ok() ? plan->origin : PlanOrigin::kGiven;
}

TEST(PlanTableTest, ARowIsThePlanOfItsProduct) {
  const PlanTableRow rows[] = {RowOf({.m = 1, .n = 2, .k = 3}), RowOf(kShape)};
  const GemmProblem problem = ProblemOf(kShape);
  const absl::StatusOr<Plan> plan = ChooseGpuPlan(H200(), {&problem, 1}, TableOf(rows));
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->tile, kWgmmaTiles.back().tile);
  EXPECT_EQ(plan->tiles, TileCount(kShape, plan->tile));
  EXPECT_TRUE(plan->ToString().ends_with(" problems=1 by=table")) << plan->ToString();
  const absl::StatusOr<Plan> model = ChooseGpuPlan(H200(), {&problem, 1}, TableOf({}));
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_FALSE(model->tile == plan->tile) << "the test shows nothing";
  EXPECT_EQ(model->origin, PlanOrigin::kModel);
}

TEST(PlanTableTest, ARowIsNobodyElsesPlan) {
  const PlanTableRow rows[] = {RowOf(kShape)};
  const PlanTable table = TableOf(rows);
  ASSERT_EQ(OriginOf(table, {ProblemOf(kShape)}), PlanOrigin::kTable);
  for (GemmShape near : {GemmShape{4095, 4096, 4096}, {4096, 4097, 4096}, {4096, 4096, 4160}}) {
    EXPECT_EQ(OriginOf(table, {ProblemOf(near)}), PlanOrigin::kModel) << near.ToString();
  }
  EXPECT_EQ(OriginOf(table, {ProblemOf(kShape, DType::kFp32)}), PlanOrigin::kModel);
  GemmProblem nn = ProblemOf(kShape);
  nn.b.transposed = false;
  EXPECT_EQ(OriginOf(table, {nn}), PlanOrigin::kModel);
  GemmProblem tt = ProblemOf(kShape);
  tt.a.transposed = true;
  EXPECT_EQ(OriginOf(table, {tt}), PlanOrigin::kModel);
  EXPECT_EQ(OriginOf(table, {ProblemOf(kShape), ProblemOf(kShape)}), PlanOrigin::kModel);
}

TEST(PlanTableTest, IsOfItsChipAndItsTilesAlone) {
  const PlanTableRow rows[] = {RowOf(kShape)};
  PlanLimits fewer = H200();
  fewer.multiprocessors = 114;
  EXPECT_EQ(OriginOf(TableOf(rows), {ProblemOf(kShape)}, fewer), PlanOrigin::kModel);
  PlanTable old = TableOf(rows);
  old.tiles ^= 1;
  EXPECT_EQ(OriginOf(old, {ProblemOf(kShape)}), PlanOrigin::kModel);
}

TEST(PlanTableTest, NamesNoKernelThatIsNotThere) {
  PlanLimits limits = H200();
  limits.kernels = {KernelId::kTmaMma};
  const PlanTableRow rows[] = {RowOf(kShape)};
  EXPECT_EQ(OriginOf(TableOf(rows), {ProblemOf(kShape)}, limits), PlanOrigin::kModel);
  PlanTableRow gone = RowOf(kShape);
  gone.tile.stages += 1;
  EXPECT_EQ(OriginOf(TableOf({&gone, 1}), {ProblemOf(kShape)}), PlanOrigin::kModel);
}

TEST(PlanTableTest, TheMeasuredTableHasEveryProductOnce) {
  const PlanTable& table = MeasuredPlanTable();
  std::set<std::string> seen;
  for (const PlanTableRow& row : table.rows) {
    GemmProblem problem = ProblemOf(row.shape, row.output);
    problem.a.transposed = row.a_transposed;
    problem.b.transposed = row.b_transposed;
    const std::string name =
        row.shape.ToString() + LayoutName(problem) + std::string(DTypeName(row.output));
    EXPECT_TRUE(seen.insert(name).second) << name;
  }
  if (!table.rows.empty()) {
    EXPECT_NE(std::string(table.chip), "");
    EXPECT_EQ(std::string(table.date).size(), 10u) << table.date;
  }
}

}  // namespace
}  // namespace tcgemm
