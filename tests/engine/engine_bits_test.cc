// The promise of the same bits, through the engine, on the CPU's plain kernel: a product gives the
// same bytes alone, with 63 others, and beside a neighbour full of NaN.
#include <memory>
#include <vector>

#include "base/thread_pool.h"
#include "gtest/gtest.h"
#include "kernels/device_cpu.h"
#include "tests/engine/engine_fixture.h"

namespace tcgemm {
namespace {

constexpr int kJobs = 64;

JobSpec SpecOf(int i, DType output) {
  return {.shape = {.m = 1 + i * 2, .n = 33 + i % 7, .k = 40 + i},
          .output = output,
          .transpose_a = i % 2 == 1,
          .transpose_b = i % 3 == 1,
          .seed = static_cast<uint64_t>(i)};
}

struct CpuEngine {
  explicit CpuEngine(Nanos window, const Clock* clock = Clock::Real()) {
    auto device = CreateCpuDevice(CpuBackend::kPlain, std::make_unique<SerialRunner>());
    EXPECT_TRUE(device.ok()) << device.status();
    auto created = Engine::Create(
        {.max_batch = kJobs, .max_queue_delay = window, .pinned_bytes = size_t{16} << 20},
        std::move(*device), clock, &events);
    EXPECT_TRUE(created.ok()) << created.status();
    engine = std::move(*created);
  }

  CountingEvents events;
  Inbox inbox;
  std::unique_ptr<Engine> engine;
};

TEST(EngineBitsTest, TheCpuPassesTheSelfTest) {
  CpuEngine cpu(Nanos(0));
  const absl::Status status = cpu.engine->SelfTest();
  EXPECT_TRUE(status.ok()) << status;
}

TEST(EngineBitsTest, ABatchKeepsEachProductsBits) {
  for (const DType output : {DType::kBf16, DType::kFp32}) {
    std::vector<std::vector<std::byte>> alone;
    {
      CpuEngine cpu(Nanos(0));
      for (int i = 0; i < kJobs; ++i) {
        ASSERT_TRUE(cpu.engine->Submit(MakeJob(*cpu.engine, SpecOf(i, output), cpu.inbox, i)).ok());
        const Ended ended = cpu.inbox.Wait(i);
        ASSERT_TRUE(ended.status.ok()) << ended.status;
        EXPECT_EQ(ended.batched_with, 0);
        alone.push_back(ended.d);
      }
    }
    for (const bool nan_neighbour : {false, true}) {
      FakeClock clock;  // stands still, so only a full batch is launched
      CpuEngine cpu(std::chrono::milliseconds(10), &clock);
      for (int i = 0; i < kJobs; ++i) {
        JobSpec spec = SpecOf(i, output);
        spec.nan_filled = nan_neighbour && i == 5;
        ASSERT_TRUE(cpu.engine->Submit(MakeJob(*cpu.engine, spec, cpu.inbox, i)).ok());
      }
      for (int i = 0; i < kJobs; ++i) {
        const Ended ended = cpu.inbox.Wait(i);
        ASSERT_TRUE(ended.status.ok()) << ended.status;
        EXPECT_EQ(ended.batched_with, kJobs - 1);
        if (nan_neighbour && i == 5) continue;
        EXPECT_EQ(ended.d, alone[static_cast<size_t>(i)]) << "job " << i;
      }
      EXPECT_EQ(cpu.events.launches, 1);
      EXPECT_EQ(cpu.events.nonfinite, nan_neighbour ? 1 : 0);
    }
  }
}

}  // namespace
}  // namespace tcgemm
