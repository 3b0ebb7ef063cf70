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

TEST(PlanOperandCopiesTest, NothingOfNothing) {
  const Layout layout({.m = 4, .n = 5, .k = 0});
  EXPECT_EQ(PlanOperandCopies(layout.host, layout.placed).count, 0);
}

}  // namespace
}  // namespace tcgemm
