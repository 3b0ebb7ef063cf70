// 16384x131072x8192: B ends at 2^31 bytes, D has 2^31 elements. In parts and against samples.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "tests/gpu/gpu_lane.h"
#include "tests/gpu/stand_in_device.h"

namespace tcgemm {
namespace {

constexpr GemmShape kShape = {.m = 16384, .n = 131072, .k = 8192};
constexpr size_t kABytes = size_t{kShape.m} * kShape.k * 2;
constexpr size_t kBBytes = size_t{kShape.n} * kShape.k * 2;
constexpr size_t kDBytes = size_t{kShape.m} * kShape.n * 2;
constexpr size_t kRowBytes = size_t{kShape.n} * 2;  // of D
// Both operands repeat one block of random numbers; its length has no factor in common with a row.
constexpr int64_t kPeriod = 8192 * 4093 + 37;
constexpr int64_t kPhaseOfB = 12345;
constexpr int64_t kRows[] = {0, 1, 8191, 8192, 16000, 16383};
constexpr int64_t kRowCount = std::size(kRows);
constexpr int64_t kColumns = 64;  // samples of a row
constexpr GemmShape kPart = {.m = 256, .n = 512, .k = kShape.k};
constexpr size_t kPartBytes = size_t{kPart.m} * kPart.n * 2;

int64_t ColumnOf(int64_t sample) { return sample * (kShape.n - 1) / (kColumns - 1); }

class GpuFarTest : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    if (IsStandIn()) GTEST_SKIP() << "no such memory, nor the time";
    absl::StatusOr<GpuLane> made = GpuLane::Create(
        gpu().device(), {.device = kABytes + kBBytes + kDBytes + kPartBytes,
                         .pinned = kPeriod * 2 + kRowCount * kRowBytes + kPartBytes});
    if (!made.ok()) GTEST_SKIP() << made.status();
    lane_ = *std::move(made);
    a_ = lane_.device_memory();
    b_ = a_ + kABytes;
    d_ = b_ + kBBytes;
    part_ = d_ + kDBytes;
    rows_ = lane_.pinned() + kPeriod * 2;
    read_part_ = rows_ + kRowCount * kRowBytes;
    FillWithNormals(lane_.pinned(), kPeriod * 2, 31);
    UploadRepeated(a_, kABytes, 0);
    UploadRepeated(b_, kBBytes, kPhaseOfB);
  }

  void UploadRepeated(std::byte* to, size_t bytes, int64_t phase) {
    size_t from = phase * 2;
    for (size_t at = 0; at < bytes; from = 0) {
      const size_t piece = std::min(bytes - at, kPeriod * 2 - from);
      ASSERT_TRUE(lane_.Upload(lane_.pinned() + from, to + at, piece).ok());
      at += piece;
    }
  }

  GemmProblem Whole() const {
    GemmProblem problem;
    problem.a = {a_, kShape.m, kShape.k, kShape.k, DType::kBf16, false};
    problem.b = {b_, kShape.n, kShape.k, kShape.k, DType::kBf16, true};
    problem.d = {d_, kShape.m, kShape.n, kShape.n, DType::kBf16, false};
    return problem;
  }
  // A corner of it, with a D of its own.
  GemmProblem Part(int64_t row, int64_t column) const {
    GemmProblem problem;
    problem.a = {a_ + row * kShape.k * 2, kPart.m, kShape.k, kShape.k, DType::kBf16, false};
    problem.b = {b_ + column * kShape.k * 2, kPart.n, kShape.k, kShape.k, DType::kBf16, true};
    problem.d = {part_, kPart.m, kPart.n, kPart.n, DType::kBf16, false};
    return problem;
  }

  // Poisons some rows of D, computes all of it and reads those.
  absl::Status Compute(const Plan& plan) {
    std::memset(rows_, 0xff, kRowCount * kRowBytes);
    for (int64_t i = 0; i < kRowCount; ++i) {
      const absl::Status status = lane_.Upload(rows_ + i * kRowBytes, RowOfD(i), kRowBytes);
      if (!status.ok()) return status;
    }
    const GemmProblem problem = Whole();
    absl::Status status = lane_.Launch(plan, {&problem, 1});
    for (int64_t i = 0; status.ok() && i < kRowCount; ++i) {
      status = lane_.Download(RowOfD(i), rows_ + i * kRowBytes, kRowBytes);
    }
    return status.ok() ? lane_.Finish() : status;
  }

  Matrix Samples() const {
    Matrix samples(kRowCount, kColumns, DType::kBf16);
    const auto* const rows = reinterpret_cast<const uint16_t*>(rows_);
    for (int64_t i = 0; i < kRowCount; ++i) {
      for (int64_t j = 0; j < kColumns; ++j) {
        samples.data<uint16_t>()[i * kColumns + j] = rows[i * kShape.n + ColumnOf(j)];
      }
    }
    return samples;
  }

  Reference SampleReference() const {
    const auto* const block = reinterpret_cast<const uint16_t*>(lane_.pinned());
    Matrix a(kRowCount, kShape.k, DType::kBf16);
    Matrix b(kShape.k, kColumns, DType::kBf16);
    for (int64_t k = 0; k < kShape.k; ++k) {
      for (int64_t i = 0; i < kRowCount; ++i) {
        a.data<uint16_t>()[i * kShape.k + k] = block[(kRows[i] * kShape.k + k) % kPeriod];
      }
      for (int64_t j = 0; j < kColumns; ++j) {
        b.data<uint16_t>()[k * kColumns + j] =
            block[(ColumnOf(j) * kShape.k + k + kPhaseOfB) % kPeriod];
      }
    }
    return ComputeReference(a.view(), b.view()).value();
  }

  std::byte* RowOfD(int64_t i) const { return d_ + kRows[i] * kRowBytes; }

  GpuLane lane_;
  std::byte* a_ = nullptr;
  std::byte* b_ = nullptr;
  std::byte* d_ = nullptr;
  std::byte* part_ = nullptr;
  std::byte* rows_ = nullptr;       // pinned: of D, those of kRows
  std::byte* read_part_ = nullptr;  // pinned
};

// Every large tile: samples to the bound, and between tiles to the bit.
TEST_F(GpuFarTest, SamplesOfEveryTile) {
  const Reference reference = SampleReference();
  std::vector<std::byte> expected;
  for (const KernelTile& kernel_tile : gpu().Runnable(true)) {
    // The narrow ones take seconds: they have as many tiles as there are rows.
    if (kernel_tile.tile.swapped || kernel_tile.kernel == KernelId::kCpAsyncMma) continue;
    SCOPED_TRACE(kernel_tile.ToString());
    const GemmProblem problem = Whole();
    const absl::Status status = Compute(PlanOfTile(kernel_tile, {&problem, 1}));
    ASSERT_TRUE(status.ok()) << status;
    ExpectWithinBound({.d = Samples()}, reference);
    if (expected.empty()) expected.assign(rows_, rows_ + kRowCount * kRowBytes);
    ASSERT_EQ(std::memcmp(rows_, expected.data(), expected.size()), 0);
  }
}

// As it is served; its far corners are products of their own.
TEST_F(GpuFarTest, ThePlannedOneIsMadeOfItsParts) {
  const GemmProblem whole = Whole();
  const absl::StatusOr<Plan> plan = ChoosePlan(gpu().device().plan_limits(), {&whole, 1});
  ASSERT_TRUE(plan.ok()) << plan.status();
  const absl::Status status = Compute(*plan);
  ASSERT_TRUE(status.ok()) << status;
  for (const int64_t row : {int64_t{0}, int64_t{8100}, kShape.m - kPart.m}) {
    for (const int64_t column : {int64_t{0}, int64_t{65500}, kShape.n - kPart.n}) {
      SCOPED_TRACE(testing::Message() << "from row " << row << ", column " << column);
      const GemmProblem part = Part(row, column);
      const absl::StatusOr<Plan> alone = ChoosePlan(gpu().device().plan_limits(), {&part, 1});
      ASSERT_TRUE(alone.ok()) << alone.status();
      ASSERT_TRUE(lane_.Launch(*alone, {&part, 1}).ok());
      ASSERT_TRUE(lane_.Download(part_, read_part_, kPartBytes).ok());
      ASSERT_TRUE(lane_.Finish().ok());
      for (int64_t i = 0; i < kRowCount; ++i) {
        if (kRows[i] < row || kRows[i] >= row + kPart.m) continue;
        const std::byte* const mine = read_part_ + (kRows[i] - row) * kPart.n * 2;
        ASSERT_EQ(std::memcmp(mine, rows_ + i * kRowBytes + column * 2, kPart.n * 2), 0)
            << "row " << kRows[i];
      }
    }
  }
}

}  // namespace
}  // namespace tcgemm
