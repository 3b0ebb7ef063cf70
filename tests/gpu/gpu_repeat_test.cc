// A grouped launch again and again: the same bits each time, also while others load the GPU.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "tests/gpu/gpu_lane.h"
#include "tests/gpu/gpu_load.h"

namespace tcgemm {
namespace {

constexpr int kRepeats = 10000;
constexpr int kSlots = 100;  // results of so many launches are compared at once
constexpr int kProblems = 48;

int64_t RoundUp(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

// 48 products of all layouts with M from 1 to 200. Their operands lie one after the other, as do
// their results, which a launch writes to a slot of its own.
class RepeatedLaunch {
 public:
  static absl::StatusOr<RepeatedLaunch> Create(Device& device) {
    RepeatedLaunch repeated;
    size_t operand_bytes = 0;
    for (int64_t i = 0; i < kProblems; ++i) {
      GemmProblem problem;
      const GemmShape shape{.m = 1 + i * 53 % 200, .n = 1 + i * 37 % 190, .k = 1 + i * 71 % 700};
      problem.a = ViewOf({shape.m, shape.k}, i % 2 == 1);
      problem.b = ViewOf({shape.k, shape.n}, i / 2 % 2 == 1);
      problem.d = {nullptr, shape.m, shape.n, RoundUp(shape.n, 64), DType::kBf16, false};
      operand_bytes += BytesOf(problem.a) + BytesOf(problem.b);
      repeated.d_bytes_ += BytesOf(AsConst(problem.d));
      repeated.problems_.push_back(problem);
    }
    const size_t slot_bytes = kSlots * repeated.d_bytes_;
    TCGEMM_ASSIGN_OR_RETURN(repeated.lane_,
                            GpuLane::Create(device, {.device = operand_bytes + slot_bytes,
                                                     .pinned = operand_bytes + 2 * slot_bytes}));
    repeated.results_ = repeated.lane_.device_memory() + operand_bytes;
    repeated.poison_ = repeated.lane_.pinned() + operand_bytes;
    repeated.read_ = repeated.poison_ + slot_bytes;
    std::memset(repeated.poison_, 0xff, slot_bytes);
    FillWithNormals(repeated.lane_.pinned(), operand_bytes, 1);
    std::byte* at = repeated.lane_.device_memory();
    TCGEMM_RETURN_IF_ERROR(repeated.lane_.Upload(repeated.lane_.pinned(), at, operand_bytes));
    for (GemmProblem& problem : repeated.problems_) {
      problem.a.data = std::exchange(at, at + BytesOf(problem.a));
      problem.b.data = std::exchange(at, at + BytesOf(problem.b));
    }
    return repeated;
  }

  const std::vector<GemmProblem>& problems() { return InSlot(0); }

  // `repeats` launches; how many results of them differ from the first one's. `between` runs before
  // each hundred.
  absl::StatusOr<int> CountDifferent(const Plan& plan, int repeats,
                                     const std::function<absl::Status()>& between) {
    std::vector<std::byte> expected;
    int different = 0;
    for (int done = 0; done < repeats; done += kSlots) {
      TCGEMM_RETURN_IF_ERROR(lane_.Upload(poison_, results_, kSlots * d_bytes_));
      TCGEMM_RETURN_IF_ERROR(between());
      for (int slot = 0; slot < kSlots; ++slot) {
        TCGEMM_RETURN_IF_ERROR(lane_.Launch(plan, InSlot(slot)));
      }
      TCGEMM_RETURN_IF_ERROR(lane_.Download(results_, read_, kSlots * d_bytes_));
      TCGEMM_RETURN_IF_ERROR(lane_.Finish());
      if (expected.empty()) expected.assign(read_, read_ + d_bytes_);
      for (int slot = 0; slot < kSlots; ++slot) {
        different += std::memcmp(read_ + slot * d_bytes_, expected.data(), d_bytes_) != 0;
      }
    }
    first_ = std::move(expected);
    return different;
  }
  // Of the launches counted last.
  const std::vector<std::byte>& first() const { return first_; }

 private:
  struct OpShape {
    int64_t rows;
    int64_t cols;
  };
  static MatrixView ViewOf(const OpShape& op, bool transposed) {
    const int64_t rows = transposed ? op.cols : op.rows;
    const int64_t cols = transposed ? op.rows : op.cols;
    return {nullptr, rows, cols, RoundUp(cols, 64), DType::kBf16, transposed};
  }
  static size_t BytesOf(const MatrixView& view) {
    return static_cast<size_t>(view.rows * view.ld) * 2;
  }
  const std::vector<GemmProblem>& InSlot(int slot) {
    std::byte* at = results_ + slot * d_bytes_;
    for (GemmProblem& problem : problems_) {
      problem.d.data = std::exchange(at, at + BytesOf(AsConst(problem.d)));
    }
    return problems_;
  }

  GpuLane lane_;
  std::vector<GemmProblem> problems_;
  size_t d_bytes_ = 0;
  std::byte* results_ = nullptr;  // of the device
  std::byte* poison_ = nullptr;   // pinned
  std::byte* read_ = nullptr;     // pinned
  std::vector<std::byte> first_;
};

absl::Status Nothing() { return absl::OkStatus(); }

class GpuRepeatTest : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    absl::StatusOr<RepeatedLaunch> made = RepeatedLaunch::Create(gpu().device());
    ASSERT_TRUE(made.ok()) << made.status();
    repeated_ = std::make_unique<RepeatedLaunch>(*std::move(made));
  }

  Plan Planned() {
    return ChoosePlan(gpu().device().plan_limits(), repeated_->problems()).value_or(Plan());
  }
  void ExpectTheSame(const Plan& plan, int repeats,
                     const std::function<absl::Status()>& between = Nothing) {
    const absl::StatusOr<int> different = repeated_->CountDifferent(plan, repeats, between);
    ASSERT_TRUE(different.ok()) << plan.ToString() << ": " << different.status();
    EXPECT_EQ(*different, 0) << plan.ToString();
  }

  std::unique_ptr<RepeatedLaunch> repeated_;
};

TEST_F(GpuRepeatTest, TenThousandOfWhatIsServed) { ExpectTheSame(Planned(), kRepeats); }

// And all tiles give one result.
TEST_F(GpuRepeatTest, EveryTileThatTakesMany) {
  std::vector<std::byte> expected;
  for (const KernelTile& kernel_tile : gpu().Runnable(true)) {
    if (!kernel_tile.grouped) continue;
    const Plan plan = PlanOfTile(kernel_tile, repeated_->problems());
    const int repeats = kernel_tile.kernel == KernelId::kTmaWgmma ? kRepeats : 1000;
    ASSERT_NO_FATAL_FAILURE(ExpectTheSame(plan, repeats));
    if (expected.empty()) expected = repeated_->first();
    EXPECT_EQ(repeated_->first() == expected, true) << kernel_tile.ToString();
  }
}

TEST_F(GpuRepeatTest, TenThousandBesideAnotherStream) {
  absl::StatusOr<GpuLoad> load = GpuLoad::Create(gpu().device());
  ASSERT_TRUE(load.ok()) << load.status();
  ExpectTheSame(Planned(), kRepeats, [&] { return load->Enqueue(20); });
  EXPECT_TRUE(load->Finish().ok());
}

TEST_F(GpuRepeatTest, TenThousandBesideAnotherProcess) {
  absl::StatusOr<LoadingProcess> other = LoadingProcess::Start();
  ASSERT_TRUE(other.ok()) << other.status();
  ExpectTheSame(Planned(), kRepeats);
  const absl::StatusOr<int> exit_code = other->Stop();
  ASSERT_TRUE(exit_code.ok()) << exit_code.status();
  EXPECT_EQ(*exit_code, 0);
}

}  // namespace
}  // namespace tcgemm
