#include "server/engine/stacking.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

namespace tcgemm {
namespace {

using Stacks = std::vector<std::vector<size_t>>;

const char kB[2] = {};

StackCandidate Candidate(int64_t m, const void* b = &kB[0]) {
  StackCandidate job;
  job.problem.a = {.rows = m, .cols = 6, .ld = 6};
  job.problem.b = {.data = b, .rows = 6, .cols = 5, .ld = 64};
  job.problem.d = {.rows = m, .cols = 5, .ld = 5};
  job.on_device.b = true;
  return job;
}

TEST(PlanStacksTest, StacksWhatSharesAResidentB) {
  std::vector<StackCandidate> jobs = {Candidate(1), Candidate(2, &kB[1]), Candidate(3),
                                      Candidate(4, &kB[1])};
  EXPECT_EQ(PlanStacks(jobs), (Stacks{{0, 2}, {1, 3}}));
}

TEST(PlanStacksTest, LeavesAloneWhatDiffers) {
  std::vector<StackCandidate> jobs(6, Candidate(4));
  jobs[1].problem.a.transposed = true;
  jobs[2].problem.b.transposed = true;
  jobs[3].problem.d.dtype = DType::kFp32;
  jobs[4].on_device.a = true;
  jobs[5].on_device.d = true;
  EXPECT_EQ(PlanStacks(jobs), (Stacks{{0}, {1}, {2}, {3}, {4}, {5}}));
  jobs[0].on_device.b = false;
  EXPECT_EQ(PlanStacks(std::vector<StackCandidate>(2, jobs[0])), (Stacks{{0}, {1}}))
      << "the same bytes, but each request's own";
  EXPECT_EQ(PlanStacks({}), Stacks{});
}

TEST(PlaceStackTest, RowsLieOneAfterTheOther) {
  const std::vector<GemmProblem> members = {Candidate(3).problem, Candidate(1).problem};
  std::vector<std::byte> slab(4096);
  const PlacedStack stack = PlaceStack(members, 64, slab.data());
  EXPECT_EQ(stack.product.shape(), (GemmShape{.m = 4, .n = 5, .k = 6}));
  EXPECT_EQ(stack.product.a.data, slab.data());
  EXPECT_EQ(stack.product.a.ld, 64);
  EXPECT_EQ(stack.product.b.data, &kB[0]);
  EXPECT_EQ(stack.product.d.data, slab.data() + 512);
  EXPECT_EQ(stack.members[0].a.data, slab.data());
  EXPECT_EQ(stack.members[1].a.data, slab.data() + 3 * 128);
  EXPECT_EQ(stack.members[1].d.data, slab.data() + 512 + 3 * 128);
  EXPECT_EQ(stack.members[1].shape(), (GemmShape{.m = 1, .n = 5, .k = 6}));
  const OnDevice on_device{.b = true};
  EXPECT_LE(SlabBytes(stack.product, 64, on_device),
            SlabBytes(members[0], 64, on_device) + SlabBytes(members[1], 64, on_device));
}

TEST(HasNonfiniteTest, LooksAtElementsNotAtGaps) {
  std::vector<float> values(8, 1.0f);
  values[3] = std::numeric_limits<float>::infinity();  // in the gap
  const MatrixView view{
      .data = values.data(), .rows = 2, .cols = 3, .ld = 4, .dtype = DType::kFp32};
  EXPECT_FALSE(HasNonfinite(view));
  values[6] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(HasNonfinite(view));
  const uint16_t halves[2] = {0x3f80, 0x7fc0};
  EXPECT_TRUE(HasNonfinite({.data = halves, .rows = 1, .cols = 2, .ld = 2}));
  EXPECT_FALSE(HasNonfinite({.data = halves, .rows = 1, .cols = 1, .ld = 2}));
}

}  // namespace
}  // namespace tcgemm
