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

// Two candidates that differ as `change` says.
template <typename Change>
void ExpectApart(const StackCandidate& first, const char* why, Change change) {
  EXPECT_EQ(PlanStacks(std::vector<StackCandidate>(2, first)), (Stacks{{0, 1}})) << why;
  std::vector<StackCandidate> jobs(2, first);
  change(jobs[1]);
  EXPECT_EQ(PlanStacks(jobs), (Stacks{{0}, {1}})) << why;
}

// With C and a bias: a column from the host, or a resident row.
StackCandidate WithEpilogue(bool column) {
  StackCandidate job = Candidate(4);
  Epilogue& epilogue = job.problem.epilogue;
  epilogue = {.alpha = 2, .beta = 1, .activation = Activation::kGelu};
  epilogue.c = {.rows = 4, .cols = 5, .ld = 5};
  epilogue.bias = {.data = &kB[1], .rows = column ? 4 : 1, .cols = column ? 1 : 5, .ld = 64};
  job.on_device.bias = !column;
  return job;
}

TEST(PlanStacksTest, TheSameEpilogueStacks) {
  for (const bool column : {false, true}) {
    const StackCandidate job = WithEpilogue(column);
    ExpectApart(job, "alpha", [](StackCandidate& j) { j.problem.epilogue.alpha = 3; });
    ExpectApart(job, "beta", [](StackCandidate& j) { j.problem.epilogue.beta = 3; });
    ExpectApart(job, "no C", [](StackCandidate& j) { j.problem.epilogue.beta = 0; });
    ExpectApart(job, "C's type",
                [](StackCandidate& j) { j.problem.epilogue.c.dtype = DType::kFp32; });
    ExpectApart(job, "a resident C", [](StackCandidate& j) { j.on_device.c = true; });
    ExpectApart(job, "no bias", [](StackCandidate& j) { j.problem.epilogue.bias = {}; });
    ExpectApart(job, "the bias's type",
                [](StackCandidate& j) { j.problem.epilogue.bias.dtype = DType::kFp32; });
    ExpectApart(job, "activation",
                [](StackCandidate& j) { j.problem.epilogue.activation = Activation::kSilu; });
  }
  ExpectApart(Candidate(2), "-0", [](StackCandidate& j) { j.problem.epilogue.alpha = -0.0f; });
}

TEST(PlanStacksTest, ARowOfBiasMustBeTheSameResidentOne) {
  ExpectApart(WithEpilogue(false), "another row",
              [](StackCandidate& j) { j.problem.epilogue.bias.data = &kB[0]; });
  StackCandidate own = WithEpilogue(false);
  own.on_device.bias = false;
  EXPECT_EQ(PlanStacks(std::vector<StackCandidate>(2, own)), (Stacks{{0}, {1}}))
      << "each request's own row";
  StackCandidate resident_column = WithEpilogue(true);
  resident_column.on_device.bias = true;
  EXPECT_EQ(PlanStacks(std::vector<StackCandidate>(2, resident_column)), (Stacks{{0}, {1}}));
  // Columns lie wherever each request has its own.
  std::vector<StackCandidate> columns(2, WithEpilogue(true));
  columns[1].problem.epilogue.bias.data = &kB[0];
  columns[1].problem.epilogue.bias.ld = 3;
  EXPECT_EQ(PlanStacks(columns), (Stacks{{0, 1}}));
}

TEST(PlaceStackTest, RowsOfCAndOfAColumnLieOneAfterTheOther) {
  for (const bool column : {false, true}) {
    const std::vector<GemmProblem> members = {WithEpilogue(column).problem,
                                              WithEpilogue(column).problem};
    std::vector<std::byte> slab(8192);
    const PlacedStack stack = PlaceStack(members, 64, slab.data());
    const Epilogue& epilogue = stack.product.epilogue;
    EXPECT_EQ(epilogue.c.data, slab.data() + 1024);  // behind 8 rows of A
    EXPECT_EQ(epilogue.c.rows, 8);
    EXPECT_EQ(epilogue.activation, Activation::kGelu);
    const Epilogue& second = stack.members[1].epilogue;
    EXPECT_EQ(second.c.data, slab.data() + 1024 + 4 * 128);
    EXPECT_EQ(second.c.rows, 4);
    if (column) {
      EXPECT_EQ(epilogue.bias.data, slab.data() + 2048);
      EXPECT_EQ(epilogue.bias.rows, 8);
      EXPECT_EQ(second.bias.data, slab.data() + 2048 + 8);
      EXPECT_EQ(second.bias.rows, 4);
      EXPECT_EQ(stack.product.d.data, slab.data() + 2048 + 256);
    } else {
      EXPECT_EQ(epilogue.bias.data, &kB[1]);
      EXPECT_EQ(second.bias.data, &kB[1]);
      EXPECT_EQ(stack.product.d.data, slab.data() + 2048);
    }
    const OnDevice on_device{.b = true, .bias = !column};
    EXPECT_LE(SlabBytes(stack.product, 64, on_device), 2 * SlabBytes(members[0], 64, on_device));
  }
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

TEST(RestOfSlabTest, IsWhatLiesBehindTheJob) {
  alignas(256) static std::byte memory[65536];
  const MemoryBlock slab(memory, sizeof(memory), [](void*) {});
  StackCandidate job;
  job.problem.a = {memory, 2, 3, 3, DType::kBf16, false};
  job.problem.b = {memory, 3, 4, 4, DType::kBf16, false};
  job.problem.d = {memory, 2, 4, 4, DType::kFp32, false};
  const size_t used = SlabFlagBytes(1) + SlabBytes(job.problem, 64);
  const SplitWorkspace rest = RestOfSlab(slab, job, 64);
  EXPECT_EQ(rest.data, memory + used);
  EXPECT_EQ(rest.bytes, sizeof(memory) - used);
  EXPECT_EQ(used % 256, 0u);
  job.on_device.b = true;
  EXPECT_GT(RestOfSlab(slab, job, 64).bytes, rest.bytes);
  job.on_device.b = false;
  const MemoryBlock just(memory, used, [](void*) {});
  EXPECT_EQ(RestOfSlab(just, job, 64).bytes, 0u);
  EXPECT_EQ(RestOfSlab(MemoryBlock(), job, 64).data, nullptr) << "unified memory has no slab";
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
