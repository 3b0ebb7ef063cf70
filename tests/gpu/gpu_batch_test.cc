// One launch of many problems: each result is what it would be alone, bit by bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "kernels/gpu_plan.h"
#include "tests/gpu/gpu_launch.h"

namespace tcgemm {
namespace {

using GpuBatchTest = KernelTileTest;
using GpuPlannedBatchTest = GpuTest;

INSTANTIATE_TEST_SUITE_P(Kernels, GpuBatchTest, testing::ValuesIn(AllKernelTiles()),
                         KernelTileName);

struct MixedBatch {
  std::vector<std::unique_ptr<Operands>> operands;
  std::vector<GpuProduct> products;

  void Add(const GemmShape& shape, const Storage& storage, uint64_t seed) {
    operands.push_back(std::make_unique<Operands>(shape, seed));
    products.push_back({operands.back().get(), storage});
  }
};

// `count` problems of all layouts around the tile's edges, with tiny ones between.
MixedBatch MakeMixedBatch(const KernelTile& tile, int count, DType output) {
  MixedBatch batch;
  for (int i = 0; i < count; ++i) {
    const GemmShape shape{.m = i % 3 == 0 ? i % 7 + 1 : (i * 37) % (tile.rows() + 60) + 1,
                          .n = i % 5 == 0 ? i % 4 + 1 : (i * 53) % (tile.columns() + 60) + 1,
                          .k = (i * 71) % 400 + 1};
    const Storage storage{
        .a_transposed = i % 2 == 1, .b_transposed = i / 2 % 2 == 1, .output = output};
    batch.Add(shape, storage, static_cast<uint64_t>(i) + 1);
  }
  return batch;
}

void FillWithNan(Operands& operands) {
  std::fill_n(operands.a.data<uint16_t>(), operands.shape.m * operands.shape.k, uint16_t{0xffff});
  std::fill_n(operands.b.data<uint16_t>(), operands.shape.k * operands.shape.n, uint16_t{0x7f80});
}

TEST_P(GpuBatchTest, EachEqualsItselfAlone) {
  if (!GetParam().grouped) GTEST_SKIP() << "this tile takes one problem a launch";
  for (DType output : {DType::kFp32, DType::kBf16}) {
    const MixedBatch batch = MakeMixedBatch(GetParam(), MaxProblems(GetParam().kernel), output);
    const std::vector<GpuResult> together = gpu().Multiply(GetParam(), batch.products);
    for (size_t i = 0; i < batch.products.size(); ++i) {
      const GpuProduct& product = batch.products[i];
      SCOPED_TRACE(testing::Message()
                   << "problem " << i << ": " << product.operands->shape.ToString() << " "
                   << product.storage.ToString());
      const GpuResult alone = Multiply(*product.operands, product.storage);
      ASSERT_EQ(together[i].Bits() == alone.Bits(), true);
      EXPECT_EQ(together[i].nonfinite, 0u);
      if (i % 16 == 0) ExpectWithinBound(together[i], product.operands->MakeReference());
    }
  }
}

TEST_P(GpuBatchTest, EverySizeOfBatch) {
  if (!GetParam().grouped) GTEST_SKIP() << "this tile takes one problem a launch";
  const MixedBatch batch = MakeMixedBatch(GetParam(), MaxProblems(GetParam().kernel), DType::kBf16);
  const std::vector<GpuResult> all = gpu().Multiply(GetParam(), batch.products);
  for (size_t count : {1, 2, 3, 31, 32, 33, 63, 64, 65, 95}) {
    if (count > all.size()) break;
    const std::vector<GpuResult> some =
        gpu().Multiply(GetParam(), absl::MakeSpan(batch.products).subspan(0, count));
    for (size_t i = 0; i < count; ++i) {
      ASSERT_EQ(some[i].Bits() == all[i].Bits(), true) << i << " of " << count;
    }
  }
}

TEST_P(GpuBatchTest, ANeighbourOfNansChangesNothing) {
  if (!GetParam().grouped) GTEST_SKIP() << "this tile takes one problem a launch";
  MixedBatch batch = MakeMixedBatch(GetParam(), 12, DType::kFp32);
  const std::vector<GpuResult> clean = gpu().Multiply(GetParam(), batch.products);
  for (int i = 1; i < 12; i += 2) FillWithNan(*batch.operands[i]);
  const std::vector<GpuResult> mixed = gpu().Multiply(GetParam(), batch.products);
  for (int i = 0; i < 12; ++i) {
    if (i % 2 == 0) {
      EXPECT_EQ(mixed[i].Bits() == clean[i].Bits(), true) << i;
      EXPECT_EQ(mixed[i].nonfinite, 0u) << i;
    } else {
      const std::vector<uint32_t> bits = mixed[i].Bits();
      EXPECT_EQ(std::count(bits.begin(), bits.end(), 0x7fc00000u),
                static_cast<int64_t>(bits.size()))
          << i;
      EXPECT_EQ(mixed[i].nonfinite, 1u) << i;
    }
  }
}

// K = 0, one problem of many tiles between small ones.
TEST_P(GpuBatchTest, UnequalNeighbours) {
  if (!GetParam().grouped) GTEST_SKIP() << "this tile takes one problem a launch";
  MixedBatch batch;
  batch.Add({.m = 3, .n = 5, .k = 0}, {}, 1);
  batch.Add({.m = 1500, .n = 1200, .k = 100}, {.b_transposed = true}, 2);
  batch.Add({.m = 1, .n = 1, .k = 3000}, {}, 3);
  batch.Add({.m = 200, .n = 300, .k = 0}, {.a_transposed = true}, 4);
  batch.Add({.m = 65, .n = 129, .k = 65}, {.a_transposed = true, .b_transposed = true}, 5);
  const std::vector<GpuResult> together = gpu().Multiply(GetParam(), batch.products);
  EXPECT_EQ(together[0].Bits(), std::vector<uint32_t>(15, 0));
  EXPECT_EQ(together[3].Bits() == std::vector<uint32_t>(60000, 0), true);
  for (size_t i : {1, 2, 4}) {
    const GpuProduct& product = batch.products[i];
    EXPECT_EQ(together[i].Bits() == Multiply(*product.operands, product.storage).Bits(), true) << i;
    ExpectWithinBound(together[i], product.operands->MakeReference());
  }
}

// As the server does it: one plan for the batch, another for each alone.
TEST_F(GpuPlannedBatchTest, EachEqualsItselfAlone) {
  const auto limit = static_cast<int>(gpu().device().plan_limits().max_problems);
  ASSERT_GE(limit, 64);
  MixedBatch batch =
      MakeMixedBatch({.tile = {.m = 300, .n = 200}}, std::min(limit, 96), DType::kBf16);
  const std::vector<GpuResult> together = gpu().MultiplyPlanned(batch.products);
  for (size_t i = 0; i < batch.products.size(); ++i) {
    const GpuResult alone = std::move(gpu().MultiplyPlanned({&batch.products[i], 1})[0]);
    ASSERT_EQ(together[i].Bits() == alone.Bits(), true)
        << batch.products[i].operands->shape.ToString();
  }
}

TEST_F(GpuPlannedBatchTest, SixtyFourOfOneShape) {
  MixedBatch batch;
  for (uint64_t i = 0; i < 64; ++i) batch.Add({128, 128, 128}, {.output = DType::kBf16}, i);
  const std::vector<GpuResult> together = gpu().MultiplyPlanned(batch.products);
  for (size_t i = 0; i < 64; ++i) {
    const GpuResult alone = std::move(gpu().MultiplyPlanned({&batch.products[i], 1})[0]);
    ASSERT_EQ(together[i].Bits() == alone.Bits(), true) << i;
    ExpectWithinBound(together[i], batch.operands[i]->MakeReference());
  }
}

}  // namespace
}  // namespace tcgemm
