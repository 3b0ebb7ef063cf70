// Products in shared memory through the engine: the same bits, no copies on the host, and memory
// that stays as long as the device may touch it.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "server/engine/engine.h"
#include "server/engine/shared_region_store.h"
#include "tests/engine/engine_fixture.h"
#include "tests/engine/region_jobs.h"

namespace tcgemm {
namespace {

using Bytes = std::vector<std::byte>;

constexpr size_t kRegionBytes = size_t{64} << 10;
constexpr size_t kBAt = size_t{16} << 10;
constexpr size_t kDAt = size_t{32} << 10;

EngineOptions WithRegions() {
  EngineOptions options = EngineFixture::DefaultOptions();
  options.shared.total_bytes = size_t{1} << 20;
  options.in_place_bytes = size_t{1} << 20;  // of a device that reads pinned memory
  options.slots = 1;
  return options;
}

struct DeviceKind {
  const char* name;
  TestDeviceOptions options;
};

class RegionJobTest : public testing::TestWithParam<DeviceKind> {};

INSTANTIATE_TEST_SUITE_P(
    Devices, RegionJobTest,
    testing::Values(DeviceKind{"cpu", {.unified_memory = true, .synchronous = true}},
                    DeviceKind{"gpu", {.pitch_alignment = 64}},
                    DeviceKind{"gpu_in_place", {.reads_pinned = true, .pitch_alignment = 64}}),
    [](const auto& info) { return std::string(info.param.name); });

TEST_P(RegionJobTest, EveryMixGivesTheSameBits) {
  EngineFixture f(GetParam().options, WithRegions());
  const SharedRegionRef region = OpenRegion(*f.engine, kRegionBytes);
  for (int layout = 0; layout < 4; ++layout) {
    const JobSpec spec{.shape = {.m = 9, .n = 7, .k = 11},
                       .transpose_a = (layout & 1) != 0,
                       .transpose_b = (layout & 2) != 0,
                       .seed = 5};
    ASSERT_TRUE(f.Submit(layout * 100, spec).ok());
    const Bytes alone = f.inbox.Wait(layout * 100).d;
    for (int mix = 1; mix < 16; ++mix) {
      const int tag = layout * 100 + mix;
      std::memset(region->data(), 0xff, region->bytes());
      Job job = MakeJob(*f.engine, spec, f.inbox, tag);
      const int64_t ld = (mix & 8) != 0 ? 64 : 13;
      if (mix & 1) {
        MoveOperand(job.problem.a, region->data(), ld);
        job.regions.a = region;
      }
      if (mix & 2) {
        MoveOperand(job.problem.b, region->data() + kBAt, ld);
        job.regions.b = region;
      }
      if (mix & 4) {
        job.problem.d.data = region->data() + kDAt;
        job.problem.d.ld = 7;
        job.regions.d = region;
        job.done = [&f, tag](JobOutcome outcome) { f.inbox.Put(tag, {.status = outcome.status}); };
      }
      ASSERT_TRUE(f.engine->Submit(std::move(job)).ok());
      const Ended ended = f.inbox.Wait(tag);
      ASSERT_TRUE(ended.status.ok()) << ended.status;
      const Bytes in_region(region->data() + kDAt, region->data() + kDAt + alone.size());
      EXPECT_EQ((mix & 4) != 0 ? in_region : ended.d, alone) << "mix " << mix;
      EXPECT_EQ(region->data()[kDAt + alone.size()], std::byte{0xff}) << "beyond D";
    }
  }
}

TEST_P(RegionJobTest, TheDeviceCopiesFromTheRegionItself) {
  EngineFixture f(GetParam().options, WithRegions());
  const SharedRegionRef region = OpenRegion(*f.engine, kRegionBytes);
  Job job = MakeJob(*f.engine, {.shape = {.m = 3, .n = 5, .k = 7}}, f.inbox, 1);
  MoveOperand(job.problem.a, region->data(), 7);
  MoveOperand(job.problem.b, region->data() + kBAt, 5);
  job.problem.d = {.data = region->data() + kDAt, .rows = 3, .cols = 5, .ld = 5};
  job.regions = {region, region, region};
  job.memory.Reset();  // there is nothing in it
  job.done = [&f](JobOutcome outcome) {
    EXPECT_FALSE(outcome.memory);
    f.inbox.Put(1, {.status = outcome.status});
  };
  ASSERT_TRUE(f.engine->Submit(std::move(job)).ok());
  ASSERT_TRUE(f.inbox.Wait(1).status.ok());
  const bool unified = GetParam().options.unified_memory;
  EXPECT_EQ(f.events.bytes_in, unified ? 0 : (3 * 7 + 7 * 5) * 2);
  EXPECT_EQ(f.events.bytes_out, unified ? 0 : 3 * 5 * 2);
}

// What lies between operands in a region and others in the lease is nobody's: one copy must not
// bring it.
TEST(JobRegionsTest, OperandsLieInOneMemoryOrNot) {
  EngineFixture f({}, WithRegions());
  const SharedRegionRef region = OpenRegion(*f.engine, kRegionBytes);
  const SharedRegionRef other = OpenRegion(*f.engine, kRegionBytes);
  const Epilogue plain;
  const Epilogue scaled = {.alpha = 2};
  const Epilogue with_c = {.beta = 1};
  const Epilogue with_bias = {.bias = {.rows = 1, .cols = 5}};
  EXPECT_TRUE((JobRegions{}.operands_in_one_memory(with_c)));
  EXPECT_TRUE((JobRegions{.d = region}.operands_in_one_memory(with_bias)));
  EXPECT_TRUE((JobRegions{region, region, other}.operands_in_one_memory(plain)));
  EXPECT_TRUE((JobRegions{region, region, nullptr}.operands_in_one_memory(scaled)));
  EXPECT_FALSE((JobRegions{region, region, nullptr}.operands_in_one_memory(with_c)));
  EXPECT_FALSE((JobRegions{region, region, nullptr}.operands_in_one_memory(with_bias)));
  EXPECT_FALSE((JobRegions{region, other, nullptr}.operands_in_one_memory(plain)));
  EXPECT_FALSE((JobRegions{region, nullptr, nullptr}.operands_in_one_memory(plain)));
}

// A job whose A lies in `region`.
Job JobIn(EngineFixture& f, const SharedRegionRef& region, int tag) {
  Job job = MakeJob(*f.engine, {}, f.inbox, tag);
  MoveOperand(job.problem.a, region->data(), 6);
  job.regions.a = region;
  return job;
}

TEST_P(RegionJobTest, AClosedRegionStaysUntilItsProductIsDone) {
  EngineFixture f(GetParam().options, WithRegions());
  SharedRegionRef region = OpenRegion(*f.engine, kRegionBytes);
  Job job = JobIn(f, region, 1);
  f.device->Hold();
  ASSERT_TRUE(f.engine->Submit(std::move(job)).ok());
  f.device->WaitForLaunches(1);
  f.engine->regions().Close(region);
  region.reset();
  EXPECT_EQ(f.engine->regions().used_bytes(), kRegionBytes);
  EXPECT_EQ(f.device->registered().size(), 1u);
  f.device->Release();
  EXPECT_TRUE(f.inbox.Wait(1).status.ok());
  while (f.engine->regions().used_bytes() != 0) std::this_thread::yield();
  EXPECT_TRUE(f.device->registered().empty());
}

TEST_P(RegionJobTest, ACancelledJobLetsGo) {
  EngineFixture f(GetParam().options, WithRegions());
  SharedRegionRef region = OpenRegion(*f.engine, kRegionBytes);
  f.SubmitBlocker(1);
  const auto id = f.engine->Submit(JobIn(f, region, 2));
  ASSERT_TRUE(id.ok());
  f.engine->regions().Close(region);
  region.reset();
  EXPECT_TRUE(f.engine->Cancel(*id, absl::CancelledError("gone")));
  while (f.engine->regions().used_bytes() != 0) std::this_thread::yield();
  f.device->Release();
  f.inbox.Wait(1);
}

TEST(RegionHangTest, AHungProductKeepsItsRegion) {
  EngineOptions options = WithRegions();
  options.watchdog_min = std::chrono::milliseconds(5);
  EngineFixture f({}, options);
  SharedRegionRef region = OpenRegion(*f.engine, kRegionBytes);
  SharedRegionRef unused = OpenRegion(*f.engine, kRegionBytes);
  f.device->Hang();
  ASSERT_TRUE(f.engine->Submit(JobIn(f, region, 1)).ok());
  f.device->Expire();
  EXPECT_EQ(f.inbox.Wait(1).status.code(), absl::StatusCode::kInternal);
  for (SharedRegionRef* const closed : {&region, &unused}) {
    f.engine->regions().Close(*closed);
    closed->reset();
  }
  while (f.engine->regions().used_bytes() != kRegionBytes) std::this_thread::yield();
  EXPECT_EQ(f.device->registered().size(), 1u) << "for ever: the device may still read it";
  f.engine.reset();
  EXPECT_EQ(f.device->registered().size(), 1u);
}

TEST(RegionOptionsTest, TheBudgetCountsAtTheStart) {
  CountingEvents events;
  EngineOptions options = EngineFixture::DefaultOptions();
  options.shared.total_bytes = size_t{1} << 50;
  const auto control = std::make_shared<TestDeviceControl>(TestDeviceOptions{});
  const auto engine = Engine::Create(options, CreateTestDevice(control), Clock::Real(), &events);
  EXPECT_TRUE(absl::IsResourceExhausted(engine.status())) << engine.status();
  EXPECT_NE(engine.status().message().find("--shared-memory-bytes"), std::string::npos);
}

}  // namespace
}  // namespace tcgemm
