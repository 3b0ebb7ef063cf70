#include "server/engine/slab.h"

#include <cstdint>
#include <vector>

#include "gtest/gtest.h"

namespace tcgemm {
namespace {

TEST(SlabBytesTest, CountsPaddedRowsAndMatrices) {
  const MatrixView a{.rows = 3, .cols = 60, .ld = 1000};
  const MatrixView b{.rows = 60, .cols = 65, .ld = 65};
  const MutableMatrixView d{.rows = 3, .cols = 65, .ld = 65, .dtype = DType::kFp32};
  // 3·64·2 → 512; 60·128·2 = 15360; 3·128·4 = 1536.
  EXPECT_EQ(SlabBytes({.a = a, .b = b, .d = d}, 64), 512u + 15360 + 1536);
  EXPECT_EQ(SlabBytes({.a = a, .b = b, .d = d}, 1), 512u + 7936 + 1024);
}

TEST(SlabBytesTest, CountsCAndBiasWhereTheyAreRead) {
  const MatrixView a{.rows = 3, .cols = 60, .ld = 1000};
  const MatrixView b{.rows = 60, .cols = 65, .ld = 65};
  const MutableMatrixView d{.rows = 3, .cols = 65, .ld = 65, .dtype = DType::kFp32};
  GemmProblem problem{.a = a, .b = b, .d = d};
  const size_t product = SlabBytes(problem, 64);
  problem.epilogue.c = {.rows = 3, .cols = 65, .ld = 65};
  EXPECT_EQ(SlabBytes(problem, 64), product) << "beta is 0";
  problem.epilogue.beta = 1;
  EXPECT_EQ(SlabBytes(problem, 64), product + 768);  // 3·128·2
  EXPECT_EQ(SlabBytes(problem, 64, {.c = true}), product);
  problem.epilogue.bias = {.rows = 1, .cols = 65, .ld = 65, .dtype = DType::kFp32};
  EXPECT_EQ(SlabBytes(problem, 64), product + 768 + 512);
  EXPECT_EQ(SlabBytes(problem, 64, {.bias = true}), product + 768);
  // A column is dense: 3 elements, not 3 rows of 64.
  problem.epilogue.bias = {.rows = 3, .cols = 1, .ld = 7, .dtype = DType::kFp32};
  EXPECT_EQ(SlabBytes(problem, 64), product + 768 + 256);
}

TEST(SlabBytesTest, Saturates) {
  const MatrixView huge{.rows = int64_t{1} << 40, .cols = int64_t{1} << 40, .ld = 1};
  EXPECT_EQ(SlabBytes({.a = huge, .b = huge, .d = {}}, 64), SIZE_MAX);
}

TEST(SlabBytesTest, FlagsTakeTheirPart) {
  EXPECT_EQ(SlabCapacity(4096, 64), 4096u - 256);
  EXPECT_EQ(SlabCapacity(4096, 65), 4096u - 512);
  EXPECT_EQ(SlabCapacity(256, 64), 0u);
  EXPECT_EQ(SlabCapacity(0, 1), 0u);
}

// A host lease and a slab, and a problem in the first.
struct Layout {
  std::vector<std::byte> lease = std::vector<std::byte>(1 << 20);
  std::vector<std::byte> slab = std::vector<std::byte>(1 << 20);
  GemmProblem host;
  GemmProblem placed;

  // As a lease of server/rpc has it: A, B and D on multiples of 256, rows padded to 64.
  explicit Layout(const GemmShape& shape, bool transpose_b = false) {
    host.a = {.rows = shape.m, .cols = shape.k};
    host.b = {.rows = transpose_b ? shape.n : shape.k,
              .cols = transpose_b ? shape.k : shape.n,
              .transposed = transpose_b};
    host.d = {.rows = shape.m, .cols = shape.n};
    host = PlaceInSlab(host, 64, lease.data());
    placed = PlaceInSlab(host, 64, slab.data() + 512);
  }
};

TEST(PlanOperandCopiesTest, OneCopyWhenTheyLieAlike) {
  for (const bool transpose_b : {false, true}) {
    const Layout layout({.m = 64, .n = 48, .k = 33}, transpose_b);
    const OperandCopies plan = PlanOperandCopies(layout.host, layout.placed);
    ASSERT_EQ(plan.count, 1);
    const Copy2d& copy = plan.copies[0];
    EXPECT_EQ(copy.source, layout.host.a.data);
    EXPECT_EQ(copy.destination, layout.placed.a.data);
    EXPECT_EQ(copy.rows, 1);
    // From A's first element to B's last, and no further.
    const auto* const end =
        static_cast<const std::byte*>(layout.host.b.data) + layout.host.b.span_bytes();
    EXPECT_EQ(static_cast<const std::byte*>(copy.source) + copy.row_bytes, end);
    EXPECT_EQ(plan.payload_bytes, (64u * 33 + 48 * 33) * 2);
  }
}

TEST(PlanOperandCopiesTest, TwoWhenTheyDoNotLieAlike) {
  const auto expect_two = [](const GemmProblem& host, const GemmProblem& placed) {
    const OperandCopies plan = PlanOperandCopies(host, placed);
    ASSERT_EQ(plan.count, 2);
    EXPECT_EQ(plan.copies[0].source, host.a.data);
    EXPECT_EQ(plan.copies[1].source, host.b.data);
    EXPECT_EQ(plan.copies[1].destination, placed.b.data);
    EXPECT_EQ(plan.copies[0].rows, host.a.rows);
    EXPECT_EQ(plan.copies[0].row_bytes, static_cast<size_t>(host.a.cols) * 2);
  };
  const GemmShape shape{.m = 64, .n = 48, .k = 33};
  Layout another_distance(shape);
  another_distance.host.b.data = another_distance.lease.data() + 65536;
  expect_two(another_distance.host, another_distance.placed);
  Layout another_pitch(shape);
  another_pitch.host.a.ld = 33;
  expect_two(another_pitch.host, another_pitch.placed);
  Layout b_pitch(shape);
  b_pitch.host.b.ld = 48;
  expect_two(b_pitch.host, b_pitch.placed);
  // The same on both sides, but B first.
  Layout b_first(shape);
  std::swap(b_first.host.a, b_first.host.b);
  std::swap(b_first.placed.a, b_first.placed.b);
  expect_two(b_first.host, b_first.placed);
}

TEST(PlanOperandCopiesTest, TwoWhenMuchLiesBetween) {
  // One element a row of 64: 126 idle bytes, 64 KiB of them in 520 rows.
  const Layout little({.m = 519, .n = 1, .k = 1});
  EXPECT_EQ(PlanOperandCopies(little.host, little.placed).count, 1);
  const Layout much({.m = 521, .n = 1, .k = 1});
  EXPECT_EQ(PlanOperandCopies(much.host, much.placed).count, 2);
}

TEST(PlanOperandCopiesTest, TwoOutOfDifferentMemory) {
  const Layout layout({.m = 64, .n = 48, .k = 33});
  // As if they lay alike by chance: what is between them is somebody else's.
  EXPECT_EQ(PlanOperandCopies(layout.host, layout.placed, {}, /*one_memory=*/false).count, 2);
}

// The epilogue's operands between B and D.
Layout WithEpilogue(bool column) {
  Layout layout({.m = 40, .n = 48, .k = 33});
  Epilogue& epilogue = layout.host.epilogue;
  epilogue.beta = 1;
  epilogue.c = {.rows = 40, .cols = 48, .dtype = DType::kFp32};
  epilogue.bias = {.rows = column ? 40 : 1, .cols = column ? 1 : 48};
  layout.host = PlaceInSlab(layout.host, 64, layout.lease.data());
  layout.placed = PlaceInSlab(layout.host, 64, layout.slab.data() + 512);
  return layout;
}

TEST(PlaceInSlabTest, CAndBiasLieBetweenBAndD) {
  for (const bool column : {false, true}) {
    const Layout layout = WithEpilogue(column);
    const GemmProblem& placed = layout.placed;
    const auto* const at = layout.slab.data() + 512;
    EXPECT_EQ(placed.epilogue.c.data, at + 5120 + 4352);  // 40·128, 33·128 on 256
    EXPECT_EQ(placed.epilogue.c.ld, 64);
    EXPECT_EQ(placed.epilogue.bias.data, at + 5120 + 4352 + 10240);
    EXPECT_EQ(placed.epilogue.bias.ld, column ? 1 : 64);
    EXPECT_EQ(placed.d.data, at + 5120 + 4352 + 10240 + 256);
    EXPECT_EQ(static_cast<const std::byte*>(placed.d.data) - at + 5120,
              static_cast<int64_t>(SlabBytes(layout.host, 64)));
  }
}

TEST(PlanOperandCopiesTest, OneCopyBringsCAndBiasToo) {
  for (const bool column : {false, true}) {
    const Layout layout = WithEpilogue(column);
    const OperandCopies plan = PlanOperandCopies(layout.host, layout.placed);
    ASSERT_EQ(plan.count, 1);
    const MatrixView& bias = layout.host.epilogue.bias;
    const auto* const end = static_cast<const std::byte*>(bias.data) + bias.span_bytes();
    EXPECT_EQ(static_cast<const std::byte*>(plan.copies[0].source) + plan.copies[0].row_bytes, end);
    const size_t bias_bytes = column ? 80 : 96;
    EXPECT_EQ(plan.payload_bytes, (40u * 33 + 33 * 48) * 2 + 40 * 48 * 4 + bias_bytes);
  }
}

TEST(PlanOperandCopiesTest, WhatIsOnTheDeviceIsLeftOut) {
  const Layout layout = WithEpilogue(true);
  // A and B together, then the bias, from which C parts them.
  const OperandCopies plan = PlanOperandCopies(layout.host, layout.placed, {.c = true});
  ASSERT_EQ(plan.count, 1) << "10 KiB between them are little";
  EXPECT_EQ(plan.payload_bytes, (40u * 33 + 33 * 48) * 2 + 80);
  EXPECT_EQ(PlanOperandCopies(layout.host, layout.placed, {.a = true, .b = true, .c = true})
                .payload_bytes,
            80u);
  EXPECT_EQ(
      PlanOperandCopies(layout.host, layout.placed, {.a = true, .b = true, .c = true, .bias = true})
          .count,
      0);
  Layout apart = WithEpilogue(true);
  apart.host.epilogue.c.ld = 48;
  const OperandCopies three = PlanOperandCopies(apart.host, apart.placed);
  ASSERT_EQ(three.count, 3) << "another pitch: A and B, C, the bias";
  EXPECT_EQ(three.copies[1].rows, 40);
  EXPECT_EQ(three.copies[2].source, apart.host.epilogue.bias.data);
}

TEST(PlanOperandCopiesTest, NothingOfNothing) {
  const Layout layout({.m = 4, .n = 5, .k = 0});
  EXPECT_EQ(PlanOperandCopies(layout.host, layout.placed).count, 0);
}

}  // namespace
}  // namespace tcgemm
