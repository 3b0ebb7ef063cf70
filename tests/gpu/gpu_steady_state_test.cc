// Served requests allocate nothing on the device, pin and register nothing, encode no tensor map.
#include <gtest/gtest.h>

#include <memory>

#include "server/engine/engine.h"
#include "tests/engine/engine_fixture.h"
#include "tests/gpu/allocation_counter.h"
#include "tests/gpu/gpu_launch.h"
#include "tests/gpu/stand_in_device.h"

namespace tcgemm {
namespace {

using GpuSteadyStateTest = GpuTest;

// Alone and in order, so that a request finds its operands where its predecessor did, or in the
// next slot.
void ServeRounds(Engine& engine, Inbox& inbox, int rounds, int& tag) {
  const JobSpec specs[] = {
      {.shape = {.m = 128, .n = 128, .k = 128}},
      {.shape = {.m = 300, .n = 200, .k = 100}, .output = DType::kFp32, .transpose_b = true},
      {.shape = {.m = 1, .n = 1000, .k = 500}, .transpose_a = true},
      {.shape = {.m = 513, .n = 511, .k = 300}}};
  for (int round = 0; round < rounds; ++round) {
    for (const JobSpec& spec : specs) {
      const int id = ++tag;
      const absl::StatusOr<JobId> job = engine.Submit(MakeJob(engine, spec, inbox, id));
      ASSERT_TRUE(job.ok()) << job.status();
      const Ended ended = inbox.Wait(id);
      ASSERT_TRUE(ended.status.ok()) << ended.status;
    }
  }
}

TEST_F(GpuSteadyStateTest, NothingIsAllocatedPerRequest) {
  absl::StatusOr<std::unique_ptr<Device>> made = CreateDeviceUnderTest();
  ASSERT_TRUE(made.ok()) << made.status();
  const Device& device = **made;
  CountingEvents events;
  Inbox inbox;
  auto engine = Engine::Create({.pinned_bytes = 64 * kMiB, .device_bytes = 64 * kMiB},
                               *std::move(made), Clock::Real(), &events);
  ASSERT_TRUE(engine.ok()) << engine.status();
  ASSERT_TRUE((*engine)->SelfTest().ok());
  int tag = 0;
  // Each shape in each slot.
  ASSERT_NO_FATAL_FAILURE(ServeRounds(**engine, inbox, 12, tag));
  const AllocationCounts allocations = CountAllocations();
  const TensorMapCounts maps = device.tensor_map_counts();
  ASSERT_NO_FATAL_FAILURE(ServeRounds(**engine, inbox, 200, tag));
  EXPECT_EQ(CountAllocations() == allocations, true);
  const TensorMapCounts later = device.tensor_map_counts();
  EXPECT_EQ(later.misses, maps.misses);
  if (IsStandIn()) return;
  EXPECT_GT(allocations.device, 0) << "the counter counts nothing";
  EXPECT_GT(later.hits, maps.hits);
}

// K is split in memory that is there, and with nobody else in the launch.
TEST_F(GpuSteadyStateTest, AFastestProductAllocatesNothingAndIsTheSameEachTime) {
  absl::StatusOr<std::unique_ptr<Device>> made = CreateDeviceUnderTest();
  ASSERT_TRUE(made.ok()) << made.status();
  CountingEvents events;
  Inbox inbox;
  auto engine = Engine::Create({.pinned_bytes = 64 * kMiB, .device_bytes = 64 * kMiB},
                               *std::move(made), Clock::Real(), &events);
  ASSERT_TRUE(engine.ok()) << engine.status();
  JobSpec spec{.shape = {.m = 64, .n = 128, .k = 4096}, .output = DType::kFp32, .seed = 5};
  int tag = 0;
  const auto serve = [&](bool fastest) {
    spec.fastest = fastest;
    // A default one beside it, which could have shared its launch.
    const JobSpec small{.shape = {.m = 16, .n = 16, .k = 16}, .output = DType::kFp32};
    EXPECT_TRUE((*engine)->Submit(MakeJob(**engine, spec, inbox, ++tag)).ok());
    EXPECT_TRUE((*engine)->Submit(MakeJob(**engine, small, inbox, ++tag)).ok());
    EXPECT_TRUE(inbox.Wait(tag).status.ok());
    const Ended ended = inbox.Wait(tag - 1);
    EXPECT_TRUE(ended.status.ok()) << ended.status;
    EXPECT_TRUE(!fastest || ended.batched_with == 0);
    return ended.d;
  };
  const std::vector<std::byte> standard = serve(false);
  const std::vector<std::byte> expected = serve(true);
  if (!IsStandIn() && gpu().device().plan_limits().kernels[0] == KernelId::kTmaWgmma) {
    EXPECT_EQ(expected == standard, false) << "nothing was split: the test shows nothing";
  }
  const AllocationCounts allocations = CountAllocations();
  for (int round = 0; round < 20; ++round) {
    ASSERT_EQ(serve(true) == expected, true) << "round " << round;
    ASSERT_EQ(serve(false) == standard, true) << "round " << round;
  }
  EXPECT_EQ(CountAllocations() == allocations, true);
}

// A GPU's answer through the engine is the kernel's own.
TEST_F(GpuSteadyStateTest, TheEnginesBitsAreTheKernels) {
  absl::StatusOr<std::unique_ptr<Device>> made = CreateDeviceUnderTest();
  ASSERT_TRUE(made.ok()) << made.status();
  CountingEvents events;
  Inbox inbox;
  auto engine = Engine::Create({.pinned_bytes = 64 * kMiB, .device_bytes = 64 * kMiB},
                               *std::move(made), Clock::Real(), &events);
  ASSERT_TRUE(engine.ok()) << engine.status();
  const JobSpec spec{.shape = {.m = 129, .n = 257, .k = 333}, .output = DType::kFp32, .seed = 77};
  // Alone, then in a crowd that batches.
  ASSERT_TRUE((*engine)->Submit(MakeJob(**engine, spec, inbox, 0)).ok());
  const std::vector<std::byte> alone = inbox.Wait(0).d;
  for (int tag = 1; tag <= 60; ++tag) {
    const JobSpec other{.shape = {.m = tag, .n = 3 * tag, .k = 100},
                        .output = DType::kFp32,
                        .seed = static_cast<uint64_t>(tag)};
    ASSERT_TRUE((*engine)->Submit(MakeJob(**engine, tag % 3 == 0 ? spec : other, inbox, tag)).ok());
  }
  const Operands operands(spec.shape, spec.seed);
  const GpuProduct product{&operands, {}};
  const GpuResult direct = std::move(gpu().MultiplyPlanned({&product, 1})[0]);
  ASSERT_EQ(alone.size(), direct.d.bytes());
  EXPECT_EQ(std::equal(alone.begin(), alone.end(), direct.d.data<std::byte>()), true);
  for (int tag = 3; tag <= 60; tag += 3) {
    EXPECT_EQ(inbox.Wait(tag).d == alone, true) << tag;
  }
  for (int tag = 1; tag <= 60; ++tag) EXPECT_TRUE(inbox.Wait(tag).status.ok());
}

}  // namespace
}  // namespace tcgemm
