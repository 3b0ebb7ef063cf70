// Every kernel, tile and layout, at every M from 1 to 300: the rows of one product by tma_mma.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "tests/gpu/gpu_lane.h"

namespace tcgemm {
namespace {

constexpr GemmShape kTall = {.m = 300, .n = 131, .k = 330};
constexpr int64_t kPitchM = 320;
constexpr int64_t kPitchN = 192;
constexpr int64_t kPitchK = 384;
constexpr size_t kDBytes = size_t{kTall.m} * kPitchN * 4;

class GpuRowsTest : public KernelTileTest {
 protected:
  void SetUp() override {
    KernelTileTest::SetUp();
    if (IsSkipped()) return;
    absl::StatusOr<GpuLane> made = GpuLane::Create(
        gpu().device(),
        {.device = 2 * kOperandBytes + kDBytes, .pinned = 2 * kOperandBytes + 3 * kDBytes});
    ASSERT_TRUE(made.ok()) << made.status();
    lane_ = *std::move(made);
    std::byte* const pinned = lane_.pinned();
    FillWithNormals(pinned, 2 * kOperandBytes, 10);
    poison_ = pinned + 2 * kOperandBytes;
    std::memset(poison_, 0xff, kDBytes);
    expected_ = poison_ + kDBytes;
    got_ = expected_ + kDBytes;
    ASSERT_TRUE(lane_.Upload(pinned, lane_.device_memory(), 2 * kOperandBytes).ok());
  }

  // Rows [row0, row0 + m) of the tall product. Operands are what happens to lie there: transposed
  // ones are other matrices.
  GemmProblem ProblemOf(const Storage& storage, int64_t row0, int64_t m) const {
    std::byte* const a = lane_.device_memory();
    std::byte* const b = a + kOperandBytes;
    GemmProblem problem;
    problem.a = storage.a_transposed
                    ? MatrixView{a + row0 * 2, kTall.k, m, kPitchM, DType::kBf16, true}
                    : MatrixView{a + row0 * kPitchK * 2, m, kTall.k, kPitchK, DType::kBf16, false};
    problem.b = storage.b_transposed
                    ? MatrixView{b, kTall.n, kTall.k, kPitchK, DType::kBf16, true}
                    : MatrixView{b, kTall.k, kTall.n, kPitchN, DType::kBf16, false};
    problem.d = {b + kOperandBytes, m, kTall.n, kPitchN, storage.output, false};
    return problem;
  }

  absl::Status Run(const KernelTile& kernel_tile, const GemmProblem& problem, std::byte* to) {
    const std::byte* const d = static_cast<const std::byte*>(problem.d.data);
    absl::Status status = lane_.Upload(poison_, problem.d.data, kDBytes);
    if (status.ok()) status = lane_.Launch(PlanOfTile(kernel_tile, {&problem, 1}), {&problem, 1});
    if (status.ok()) status = lane_.Download(d, to, kDBytes);
    return status.ok() ? lane_.Finish() : status;
  }

  // Rows of `got` from 0 are those of `expected` from row0, and behind them nothing was written.
  bool Equal(const GemmProblem& problem, int64_t row0) const {
    const size_t element = DTypeSize(problem.d.dtype);
    for (int64_t row = 0; row < problem.d.rows; ++row) {
      const std::byte* const mine = got_ + row * kPitchN * element;
      const std::byte* const theirs = expected_ + (row0 + row) * kPitchN * element;
      if (std::memcmp(mine, theirs, kTall.n * element) != 0) return false;
    }
    const size_t end = problem.d.rows * kPitchN * element;
    return std::memcmp(got_ + end, poison_ + end, kDBytes - end) == 0;
  }

  static constexpr size_t kOperandBytes = size_t{kPitchK} * kPitchM * 2;
  GpuLane lane_;
  std::byte* poison_ = nullptr;
  std::byte* expected_ = nullptr;
  std::byte* got_ = nullptr;
};

INSTANTIATE_TEST_SUITE_P(Kernels, GpuRowsTest, testing::ValuesIn(AllKernelTiles()), KernelTileName);

TEST_P(GpuRowsTest, EveryMAndLayoutHasTheBitsOfTmaMma) {
  if (GetParam().kernel == KernelId::kSimt) GTEST_SKIP() << "its bits are its own";
  const std::vector<KernelTile> runnable = gpu().Runnable(true);
  const auto reference = std::find_if(runnable.begin(), runnable.end(), [](const KernelTile& it) {
    return it.kernel == KernelId::kTmaMma;
  });
  if (reference == runnable.end()) GTEST_SKIP() << "no tma_mma on this chip";
  for (const Storage& storage : AllStorages()) {
    SCOPED_TRACE(storage.ToString());
    const absl::Status whole = Run(*reference, ProblemOf(storage, 0, kTall.m), expected_);
    ASSERT_TRUE(whole.ok()) << whole;
    for (int64_t m = 1; m <= kTall.m; ++m) {
      // A column of a transposed A starts at 16 bytes.
      const int64_t row0 = m * 29 % (kTall.m + 1 - m) / 8 * 8;
      const GemmProblem problem = ProblemOf(storage, row0, m);
      const absl::Status status = Run(GetParam(), problem, got_);
      ASSERT_TRUE(status.ok()) << status;
      ASSERT_TRUE(Equal(problem, row0)) << m << " rows from row " << row0;
    }
  }
}

}  // namespace
}  // namespace tcgemm
