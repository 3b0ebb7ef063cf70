// K in parts: D is the parts' sums, added in their order, and finished as every other kernel does.
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "kernels/split_k.h"
#include "kernels/tile/activation.h"
#include "kernels/tile/epilogue.h"
#include "tests/gpu/gpu_lane.h"
#include "tests/gpu/stand_in_device.h"

namespace tcgemm {
namespace {

constexpr GemmShape kShape = {.m = 129, .n = 203, .k = 1037};
constexpr int64_t kPitch = 1088;  // of every matrix
constexpr size_t kMatrixBytes = size_t{kShape.k} * kPitch * 4;
constexpr size_t kSumBytes = size_t{1} << 22;

class GpuSplitTest : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    if (IsStandIn()) GTEST_SKIP() << "no tma_wgmma there";
    if (!gpu().CanRun({KernelId::kTmaWgmma, kWgmmaTiles[0].tile})) {
      GTEST_SKIP() << "no tma_wgmma on this chip";
    }
    absl::StatusOr<GpuLane> made =
        GpuLane::Create(gpu().device(), {.device = 3 * kMatrixBytes + kSumBytes + 256,
                                         .pinned = 2 * kMatrixBytes + kMatrixBytes + kSumBytes});
    ASSERT_TRUE(made.ok()) << made.status();
    lane_ = *std::move(made);
    FillWithNormals(lane_.pinned(), 2 * kMatrixBytes, 5);
    read_ = lane_.pinned() + 2 * kMatrixBytes;
    sums_ = read_ + kMatrixBytes;
    ASSERT_TRUE(lane_.Upload(lane_.pinned(), lane_.device_memory(), 2 * kMatrixBytes).ok());
  }

  GemmProblem ProblemOf(const Storage& storage) const {
    std::byte* const a = lane_.device_memory();
    std::byte* const b = a + kMatrixBytes;
    std::byte* const d = b + kMatrixBytes;
    GemmProblem problem;
    problem.a = {a, kShape.m, kShape.k, kPitch, DType::kBf16, false};
    if (storage.a_transposed) problem.a = {a, kShape.k, kShape.m, kPitch, DType::kBf16, true};
    problem.b = {b, kShape.k, kShape.n, kPitch, DType::kBf16, false};
    if (storage.b_transposed) problem.b = {b, kShape.n, kShape.k, kPitch, DType::kBf16, true};
    problem.d = {d, kShape.m, kShape.n, kPitch, storage.output, false};
    problem.workspace = {d + kMatrixBytes, kSumBytes};
    return problem;
  }

  Plan PlanOf(const GpuTile& tile, const GemmProblem& problem, int splits) const {
    Plan plan = {.kernel = KernelId::kTmaWgmma, .problems = 1, .tile = tile, .splits = splits};
    plan.tiles =
        PlanOfParts(plan, SplitParts(problem, splits, problem.workspace.data).problems()).tiles;
    return plan;
  }

  // D, which was poisoned; the gaps between its rows must still be.
  std::vector<uint32_t> Run(const Plan& plan, const GemmProblem& problem) {
    std::memset(read_, 0xff, kMatrixBytes);
    absl::Status status = lane_.Upload(read_, problem.d.data, kMatrixBytes);
    if (status.ok()) status = lane_.Launch(plan, {&problem, 1});
    if (status.ok()) status = lane_.Download(problem.d.data, read_, kMatrixBytes);
    if (status.ok()) status = lane_.Download(problem.workspace.data, sums_, kSumBytes);
    if (status.ok()) status = lane_.Finish();
    EXPECT_TRUE(status.ok()) << plan.ToString() << ": " << status;
    const uint32_t poison = problem.d.dtype == DType::kFp32 ? 0xffffffffu : 0xffffu;
    std::vector<uint32_t> bits;
    int64_t touched = 0;
    for (int64_t i = 0; i < kShape.m; ++i) {
      for (int64_t j = 0; j < kPitch; ++j) {
        const uint32_t element = Element(problem.d.dtype, i * kPitch + j);
        if (j < kShape.n) {
          bits.push_back(element);
        } else {
          touched += element != poison;
        }
      }
    }
    EXPECT_EQ(touched, 0) << "elements between the rows of D";
    return bits;
  }

  uint32_t Element(DType dtype, int64_t index) const {
    return dtype == DType::kFp32 ? reinterpret_cast<const uint32_t*>(read_)[index]
                                 : reinterpret_cast<const uint16_t*>(read_)[index];
  }

  // The sums that lie in the workspace after Run, added.
  std::vector<float> AddedParts(int splits) const {
    const auto* const parts = reinterpret_cast<const float*>(sums_);
    const int64_t ld = SplitLd(kShape.n);
    std::vector<float> added;
    for (int64_t i = 0; i < kShape.m; ++i) {
      for (int64_t j = 0; j < kShape.n; ++j) {
        float sum = parts[i * ld + j];
        for (int64_t part = 1; part < splits; ++part) {
          sum += parts[(part * kShape.m + i) * ld + j];
        }
        added.push_back(sum);
      }
    }
    return added;
  }

  GpuLane lane_;
  std::byte* read_ = nullptr;  // pinned
  std::byte* sums_ = nullptr;  // pinned
};

std::vector<GpuTile> TilesForParts() {
  std::vector<GpuTile> tiles;
  for (const GpuTileEntry& entry : kWgmmaTiles) {
    if (entry.grouped && !entry.tile.swapped) tiles.push_back(entry.tile);
  }
  return tiles;
}

TEST_F(GpuSplitTest, DIsTheSumOfThePartsAndWithinTheBound) {
  ASSERT_FALSE(TilesForParts().empty());
  for (const Storage& storage : AllStorages()) {
    SCOPED_TRACE(storage.ToString());
    const GemmProblem problem = ProblemOf(storage);
    GemmProblem on_host = problem;
    on_host.a.data = lane_.pinned();
    on_host.b.data = lane_.pinned() + kMatrixBytes;
    const Reference reference = ComputeReference(on_host.a, on_host.b).value();
    for (const GpuTile& tile : TilesForParts()) {
      for (const int splits : {2, 3, 7, 16}) {
        const Plan plan = PlanOf(tile, problem, splits);
        const std::vector<uint32_t> bits = Run(plan, problem);
        std::vector<uint32_t> expected;
        for (const float sum : AddedParts(splits)) {
          expected.push_back(storage.output == DType::kFp32 ? Fp32Output(sum) : Bf16Output(sum));
        }
        ASSERT_EQ(bits == expected, true) << plan.ToString();
        GpuResult result{.d = Matrix(kShape.m, kShape.n, storage.output)};
        for (size_t i = 0; i < bits.size(); ++i) {
          if (storage.output == DType::kFp32) {
            result.d.data<uint32_t>()[i] = bits[i];
          } else {
            result.d.data<uint16_t>()[i] = static_cast<uint16_t>(bits[i]);
          }
        }
        ExpectWithinBound(result, reference);
      }
    }
  }
}

// The tile changes nothing, and nothing is left over from the launch before.
TEST_F(GpuSplitTest, TheSameBitsEachTimeAndWithEveryTile) {
  const GemmProblem problem = ProblemOf({.b_transposed = true});
  const std::vector<GpuTile> tiles = TilesForParts();
  const std::vector<uint32_t> expected = Run(PlanOf(tiles[0], problem, 5), problem);
  for (int round = 0; round < 100; ++round) {
    const GpuTile& tile = tiles[round % tiles.size()];
    ASSERT_EQ(Run(PlanOf(tile, problem, 5), problem) == expected, true) << "round " << round;
  }
}

// Each step as element_epilogue.h has it.
TEST_F(GpuSplitTest, TheEpilogueComesAfterTheLastSum) {
  GemmProblem problem = ProblemOf({.output = DType::kFp32});
  problem.epilogue.alpha = -0.75f;
  problem.epilogue.bias = {lane_.device_memory(), 1, kShape.n, kPitch, DType::kBf16, false};
  problem.epilogue.activation = Activation::kRelu;
  const std::vector<uint32_t> bits = Run(PlanOf(TilesForParts()[0], problem, 4), problem);
  const std::vector<float> sums = AddedParts(4);
  const auto* const bias = reinterpret_cast<const uint16_t*>(lane_.pinned());
  int64_t different = 0;
  for (size_t i = 0; i < sums.size(); ++i) {
    const float addend = FloatOf(static_cast<uint32_t>(bias[i % kShape.n]) << 16);
    const float value = AddRn(MultiplyRn(-0.75f, sums[i]), addend);
    different += bits[i] != Fp32Output(Activate(Activation::kRelu, value));
  }
  EXPECT_EQ(different, 0);
}

// What a server does with FASTEST where tiles are few, and without it.
TEST_F(GpuSplitTest, OnlyAProductWithRoomIsSplit) {
  const PlanLimits& limits = gpu().device().plan_limits();
  GemmProblem problem = ProblemOf({.b_transposed = true, .output = DType::kFp32});
  problem.a.cols = problem.a.ld = problem.b.cols = problem.b.ld = 8192;
  const absl::StatusOr<Plan> fastest = ChoosePlan(limits, {&problem, 1});
  ASSERT_TRUE(fastest.ok()) << fastest.status();
  problem.workspace = {};
  const absl::StatusOr<Plan> standard = ChoosePlan(limits, {&problem, 1});
  ASSERT_TRUE(standard.ok()) << standard.status();
  EXPECT_EQ(standard->splits, 1);
  EXPECT_GT(fastest->splits, 1) << fastest->ToString();
}

TEST_F(GpuSplitTest, FlagsWhatIsNotFinite) {
  GemmProblem problem = ProblemOf({.b_transposed = true, .output = DType::kFp32});
  problem.nonfinite = reinterpret_cast<uint32_t*>(problem.workspace.data + kSumBytes);
  uint32_t flag = 7;
  const Plan plan = PlanOf(TilesForParts()[0], problem, 3);
  for (const bool nan : {false, true}) {
    const uint32_t zero = 0;
    const uint16_t element = nan ? 0x7fc0 : 0x3f80;
    ASSERT_TRUE(lane_.Upload(&zero, problem.nonfinite, 4).ok());
    ASSERT_TRUE(lane_.Upload(&element, lane_.device_memory() + 2 * 700, 2).ok());
    const std::vector<uint32_t> bits = Run(plan, problem);
    ASSERT_TRUE(lane_.Download(problem.nonfinite, &flag, 4).ok());
    ASSERT_TRUE(lane_.Finish().ok());
    EXPECT_EQ(flag, nan ? 1u : 0u);
    EXPECT_EQ(bits[3] == kOutputNanFp32, nan) << "row 0 has it";
    EXPECT_NE(bits[kShape.n], kOutputNanFp32) << "row 1 has not";
  }
}

}  // namespace
}  // namespace tcgemm
