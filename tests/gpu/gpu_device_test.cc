// Copies, events and large addresses through the Device of a GPU.
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "tests/gpu/gpu_launch.h"
#include "tests/gpu/stand_in_device.h"

namespace tcgemm {
namespace {

using GpuDeviceTest = GpuTest;

constexpr Nanos kLong = std::chrono::seconds(60);

// What the tests below need, made once per test.
struct Lane {
  explicit Lane(Device& d) : device(d), stream(*d.CreateStream()), event(*d.CreateEvent()) {}
  void Finish() {
    const absl::Status recorded = device.Record(*stream, *event);
    ASSERT_TRUE(recorded.ok()) << recorded;
    const absl::Status waited = device.Wait(*event, kLong);
    ASSERT_TRUE(waited.ok()) << waited;
  }
  Device& device;
  std::unique_ptr<Stream> stream;
  std::unique_ptr<Event> event;
};

Plan PlanOf(const KernelTile& kernel_tile, const GemmProblem& problem) {
  return {.kernel = kernel_tile.kernel,
          .problems = 1,
          .tile = kernel_tile.tile,
          .tiles = static_cast<int>(TileCount(problem.shape(), kernel_tile.tile))};
}

TEST_F(GpuDeviceTest, DescribesItself) {
  const DeviceInfo& info = gpu().device().info();
  EXPECT_EQ(info.name, "cuda:0");
  EXPECT_EQ(info.pitch_alignment, 64);
  EXPECT_FALSE(info.unified_memory);
  EXPECT_GT(info.flops_per_second, 1e9);
  EXPECT_FALSE(info.description.empty());
  const PlanLimits& limits = gpu().device().plan_limits();
  ASSERT_FALSE(limits.kernels.empty());
  EXPECT_GT(limits.multiprocessors, 0);
  EXPECT_GE(limits.compute_capability, 80);
  EXPECT_NE(limits.kernels[0], KernelId::kSimt);
  EXPECT_TRUE(gpu().device().healthy());
}

TEST_F(GpuDeviceTest, PitchedCopiesThereAndBack) {
  Device& device = gpu().device();
  Lane lane(device);
  const MemoryBlock pinned = *device.AllocatePinned(4 * kMiB);
  const MemoryBlock back = *device.AllocatePinned(4 * kMiB);
  const MemoryBlock memory = *device.AllocateDevice(4 * kMiB);
  std::minstd_rand random(1);
  for (size_t i = 0; i < pinned.bytes(); ++i) pinned.data()[i] = static_cast<std::byte>(random());
  for (size_t row_bytes : {1, 2, 127, 128, 130, 4096, 10000}) {
    for (int64_t rows : {1, 2, 63, 200}) {
      const size_t near_pitch = row_bytes + row_bytes % 7;
      const size_t far_pitch = (row_bytes + 127) / 128 * 128 + 128;
      std::memset(back.data(), 0xee, back.bytes());
      Copy2d in{memory.data() + 256, pinned.data() + 3, far_pitch, near_pitch, row_bytes, rows};
      ASSERT_TRUE(device.CopyIn(*lane.stream, in).ok());
      Copy2d out{back.data() + 5, memory.data() + 256, near_pitch, far_pitch, row_bytes, rows};
      ASSERT_TRUE(device.CopyOut(*lane.stream, out).ok());
      ASSERT_NO_FATAL_FAILURE(lane.Finish());
      for (int64_t row = 0; row < rows; ++row) {
        const size_t at = static_cast<size_t>(row) * near_pitch;
        ASSERT_EQ(std::memcmp(back.data() + 5 + at, pinned.data() + 3 + at, row_bytes), 0)
            << row_bytes << " bytes, row " << row;
      }
      const size_t end = 5 + static_cast<size_t>(rows - 1) * near_pitch + row_bytes;
      ASSERT_EQ(back.data()[4], std::byte{0xee});
      ASSERT_EQ(back.data()[end], std::byte{0xee});
    }
  }
  // One row without pitches, and nothing at all.
  ASSERT_TRUE(device.CopyIn(*lane.stream, {memory.data(), pinned.data(), 0, 0, 3 * kMiB, 1}).ok());
  ASSERT_TRUE(device.CopyOut(*lane.stream, {back.data(), memory.data(), 0, 0, 3 * kMiB, 1}).ok());
  EXPECT_TRUE(device.CopyIn(*lane.stream, Copy2d{}).ok());
  ASSERT_NO_FATAL_FAILURE(lane.Finish());
  EXPECT_EQ(std::memcmp(back.data(), pinned.data(), 3 * kMiB), 0);
}

TEST_F(GpuDeviceTest, TooMuchMemoryIsAnErrorNotACrash) {
  EXPECT_TRUE(absl::IsResourceExhausted(gpu().device().AllocateDevice(size_t{1} << 46).status()));
  EXPECT_TRUE(absl::IsResourceExhausted(gpu().device().AllocatePinned(size_t{1} << 46).status()));
  EXPECT_TRUE(gpu().device().healthy());
}

// The plain kernel over a product that takes about a tenth of a second on a large GPU.
TEST_F(GpuDeviceTest, WaitGivesUpAtItsLimitAndTheWorkGoesOn) {
  if (IsStandIn()) GTEST_SKIP() << "its work is done before anyone waits";
  Device& device = gpu().device();
  Lane lane(device);
  const std::unique_ptr<Event> start = *device.CreateEvent();
  const int64_t side = 8192;
  const int64_t depth = 16384;
  const MemoryBlock memory = *device.AllocateDevice(2 * (2 * side * depth + side * side));
  GemmProblem problem;
  problem.a = {memory.data(), side, depth, depth, DType::kBf16, false};
  problem.b = {memory.data() + 2 * side * depth, depth, side, side, DType::kBf16, false};
  problem.d = {memory.data() + 4 * side * depth, side, side, side, DType::kBf16, false};
  const Plan plan = PlanOf({KernelId::kSimt, kSimtTile, true}, problem);
  const auto begin = std::chrono::steady_clock::now();
  ASSERT_TRUE(device.Record(*lane.stream, *start).ok());
  const absl::Status launched = device.Launch(*lane.stream, plan, {&problem, 1});
  ASSERT_TRUE(launched.ok()) << launched;
  ASSERT_TRUE(device.Record(*lane.stream, *lane.event).ok());
  const absl::Status early = device.Wait(*lane.event, std::chrono::milliseconds(2));
  EXPECT_TRUE(absl::IsDeadlineExceeded(early)) << early;
  EXPECT_TRUE(device.healthy());
  const absl::Status done = device.Wait(*lane.event, kLong);
  ASSERT_TRUE(done.ok()) << done;
  const Nanos wall = std::chrono::steady_clock::now() - begin;
  const absl::StatusOr<Nanos> elapsed = device.Elapsed(*start, *lane.event);
  ASSERT_TRUE(elapsed.ok()) << elapsed.status();
  EXPECT_GT(*elapsed, std::chrono::milliseconds(2));
  EXPECT_LE(*elapsed, wall);
  EXPECT_GT(*elapsed, wall / 4);
}

TEST_F(GpuDeviceTest, StreamsOverlapAndKeepTheirOrder) {
  Device& device = gpu().device();
  Lane lanes[] = {Lane(device), Lane(device), Lane(device)};
  const MemoryBlock pinned = *device.AllocatePinned(3 * kMiB);
  const MemoryBlock memory = *device.AllocateDevice(3 * kMiB);
  for (int round = 1; round <= 50; ++round) {
    for (int i = 0; i < 3; ++i) {
      std::byte* const host = pinned.data() + i * kMiB;
      std::memset(host, round * 3 + i, kMiB / 2);
      ASSERT_TRUE(
          device.CopyIn(*lanes[i].stream, {memory.data() + i * kMiB, host, 0, 0, kMiB / 2, 1})
              .ok());
      ASSERT_TRUE(device
                      .CopyOut(*lanes[i].stream,
                               {host + kMiB / 2, memory.data() + i * kMiB, 0, 0, kMiB / 2, 1})
                      .ok());
    }
    for (int i = 0; i < 3; ++i) {
      ASSERT_NO_FATAL_FAILURE(lanes[i].Finish());
      const std::byte* const host = pinned.data() + i * kMiB;
      ASSERT_EQ(std::memcmp(host, host + kMiB / 2, kMiB / 2), 0) << "round " << round;
    }
  }
}

// Rows so far apart that A and D span more than 2^31 elements and more than 4 GiB each.
TEST_F(GpuDeviceTest, OffsetsBeyondFourGiB) {
  if (IsStandIn()) GTEST_SKIP() << "no such memory";
  Device& device = gpu().device();
  Lane lane(device);
  const GemmShape shape{.m = 70, .n = 131, .k = 200};
  const int64_t lda = int64_t{1} << 25;
  const int64_t ldd = int64_t{1} << 25;
  const size_t a_bytes = static_cast<size_t>(shape.m) * lda * 2;
  const size_t b_bytes = 192 * 2 * 200;
  absl::StatusOr<MemoryBlock> memory =
      device.AllocateDevice(2 * a_bytes + b_bytes + static_cast<size_t>(shape.m) * ldd * 2 + 4096);
  if (!memory.ok()) GTEST_SKIP() << memory.status();
  const Operands operands(shape, 5);
  const Reference reference = operands.MakeReference();
  std::byte* const b = memory->data();
  std::byte* const a = b + 200 * 192 * 2 + 512;
  std::byte* const d = a + a_bytes;
  const Copy2d copy_a{a, operands.a.data<std::byte>(), static_cast<size_t>(lda) * 2, 400, 400, 70};
  const Copy2d copy_b{b, operands.b.data<std::byte>(), 192 * 2, 131 * 2, 131 * 2, 200};
  for (const KernelTile& kernel_tile : gpu().Runnable(false)) {
    SCOPED_TRACE(kernel_tile.ToString());
    ASSERT_TRUE(device.CopyIn(*lane.stream, copy_a).ok());
    ASSERT_TRUE(device.CopyIn(*lane.stream, copy_b).ok());
    GemmProblem problem;
    problem.a = {a, shape.m, shape.k, lda, DType::kBf16, false};
    problem.b = {b, shape.k, shape.n, 192, DType::kBf16, false};
    problem.d = {d, shape.m, shape.n, ldd, DType::kBf16, false};
    const absl::Status status =
        device.Launch(*lane.stream, PlanOf(kernel_tile, problem), {&problem, 1});
    ASSERT_TRUE(status.ok()) << status;
    GpuResult result{.d = Matrix(shape.m, shape.n, DType::kBf16)};
    FillBytes(result.d, 0xff);
    const Copy2d copy_d{result.d.data<std::byte>(),   d,       131 * 2,
                        static_cast<size_t>(ldd) * 2, 131 * 2, shape.m};
    ASSERT_TRUE(device.CopyOut(*lane.stream, copy_d).ok());
    ASSERT_NO_FATAL_FAILURE(lane.Finish());
    ExpectWithinBound(result, reference);
  }
}

}  // namespace
}  // namespace tcgemm
