// Shared memory and a GPU: a sealed memfd that is pinned once, copied from and to by DMA, punched
// by its client meanwhile, and given back.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "server/engine/engine.h"
#include "tests/engine/engine_fixture.h"
#include "tests/engine/region_jobs.h"
#include "tests/gpu/allocation_counter.h"
#include "tests/gpu/gpu_launch.h"
#include "tests/gpu/stand_in_device.h"

namespace tcgemm {
namespace {

constexpr size_t kBAt = 16 * kMiB;
constexpr size_t kDAt = 32 * kMiB;

class GpuRegionTest : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    absl::StatusOr<std::unique_ptr<Device>> made = CreateDeviceUnderTest();
    ASSERT_TRUE(made.ok()) << made.status();
    auto engine = Engine::Create({.pinned_bytes = 64 * kMiB,
                                  .device_bytes = 256 * kMiB,
                                  .shared = {.total_bytes = 256 * kMiB}},
                                 *std::move(made), Clock::Real(), &events_);
    ASSERT_TRUE(engine.ok()) << engine.status();
    engine_ = *std::move(engine);
  }
  // A, B and D of the job lie in `region`, with these leading dimensions; `shift` elements away
  // from any alignment.
  Job JobIn(const SharedRegionRef& region, const JobSpec& spec, int tag, int64_t extra_ld,
            int64_t shift) {
    Job job = MakeJob(*engine_, spec, inbox_, tag);
    MoveOperand(job.problem.a, region->data() + 2 * shift, job.problem.a.cols + extra_ld);
    MoveOperand(job.problem.b, region->data() + kBAt + 2 * shift, job.problem.b.cols + extra_ld);
    job.problem.d.data = region->data() + kDAt + 4 * shift;
    job.problem.d.ld = job.problem.d.cols;
    job.regions = {region, region, region};
    job.memory.Reset();
    job.done = [this, tag](JobOutcome outcome) {
      inbox_.Put(tag, {.status = outcome.status, .timings = outcome.timings});
    };
    return job;
  }
  Ended Run(Job job, int tag) {
    const absl::StatusOr<JobId> id = engine_->Submit(std::move(job));
    EXPECT_TRUE(id.ok()) << id.status();
    return id.ok() ? inbox_.Wait(tag) : Ended{.status = id.status()};
  }

  CountingEvents events_;
  Inbox inbox_;
  std::unique_ptr<Engine> engine_;
};

TEST_F(GpuRegionTest, TheSameBitsAsOutOfPinnedMemory) {
  const SharedRegionRef region = OpenRegion(*engine_, 48 * kMiB);
  int tag = 0;
  for (const DType output : {DType::kBf16, DType::kFp32}) {
    for (const GemmShape& shape :
         {GemmShape{.m = 128, .n = 128, .k = 128}, GemmShape{.m = 1, .n = 1, .k = 1},
          GemmShape{.m = 300, .n = 201, .k = 77}, GemmShape{.m = 1024, .n = 999, .k = 1000}}) {
      for (int layout = 0; layout < 4; ++layout) {
        const JobSpec spec{.shape = shape,
                           .output = output,
                           .transpose_a = (layout & 1) != 0,
                           .transpose_b = (layout & 2) != 0,
                           .seed = 9};
        const int pinned = ++tag;
        const Ended want = Run(MakeJob(*engine_, spec, inbox_, pinned), pinned);
        ASSERT_TRUE(want.status.ok()) << want.status;
        for (const auto& [extra_ld, shift] : {std::pair{0, 0}, std::pair{5, 1}, std::pair{64, 3}}) {
          std::memset(region->data() + kDAt, 0xff, want.d.size() + 64);
          const int here = ++tag;
          const Ended ended = Run(JobIn(region, spec, here, extra_ld, shift), here);
          ASSERT_TRUE(ended.status.ok()) << ended.status;
          const std::byte* const d = region->data() + kDAt + 4 * shift;
          EXPECT_EQ(std::equal(want.d.begin(), want.d.end(), d), true)
              << shape.ToString() << " layout " << layout << " ld + " << extra_ld;
          EXPECT_EQ(d[want.d.size()], std::byte{0xff}) << "beyond D";
        }
      }
    }
  }
}

TEST_F(GpuRegionTest, ARegionIsRegisteredOnceAndProductsRegisterNothing) {
  const JobSpec spec{.shape = {.m = 256, .n = 128, .k = 512}};
  const SharedRegionRef region = OpenRegion(*engine_, 48 * kMiB);
  int tag = 0;
  for (int i = 0; i < 12; ++i, ++tag) {
    ASSERT_TRUE(Run(JobIn(region, spec, tag, 0, 0), tag).status.ok());
  }
  const AllocationCounts before = CountAllocations();
  if (!IsStandIn()) {
    EXPECT_GT(before.registered, 0) << "the counter counts nothing";
  }
  for (int i = 0; i < (IsStandIn() ? 10 : 200); ++i, ++tag) {
    ASSERT_TRUE(Run(JobIn(region, spec, tag, 0, 0), tag).status.ok());
  }
  EXPECT_EQ(CountAllocations() == before, true);
}

TEST_F(GpuRegionTest, RegionsComeAndGo) {
  const JobSpec spec{.shape = {.m = 64, .n = 64, .k = 64}};
  for (int tag = 0; tag < (IsStandIn() ? 5 : 20); ++tag) {
    SharedRegionRef region = OpenRegion(*engine_, 128 * kMiB);
    ASSERT_TRUE(Run(JobIn(region, spec, tag, 0, 0), tag).status.ok());
    engine_->regions().Close(region);
    region.reset();
    // The next one only fits when this one is unpinned and freed.
  }
  while (engine_->regions().used_bytes() != 0) std::this_thread::yield();
  EXPECT_TRUE(engine_->healthy());
}

// What a client of bad will does: the pages of its region go while the GPU copies from them.
TEST_F(GpuRegionTest, HolesPunchedMeanwhileHurtNobodyElse) {
  const JobSpec spec{.shape = {.m = 512, .n = 512, .k = 512}, .output = DType::kFp32};
  const SharedRegionRef punched = OpenRegion(*engine_, 48 * kMiB, {"uid:1"});
  const SharedRegionRef other = OpenRegion(*engine_, 48 * kMiB, {"uid:2"});
  const Ended want = Run(MakeJob(*engine_, spec, inbox_, 0), 0);
  ASSERT_TRUE(want.status.ok()) << want.status;
  std::atomic<bool> stop{false};
  std::thread client([&] {
    const int fd = dup(punched->fd());
    for (size_t page = 0; !stop; page = (page + 7) % (48 * kMiB / 4096)) {
      const auto at = static_cast<off_t>(page * 4096);
      EXPECT_EQ(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, at, 4096), 0);
    }
    EXPECT_EQ(ftruncate(fd, 0), -1) << "the size is sealed";
    close(fd);
  });
  for (int tag = 1; tag <= (IsStandIn() ? 20 : 400); tag += 2) {
    EXPECT_TRUE(Run(JobIn(punched, spec, tag, 0, 0), tag).status.ok());
    ASSERT_TRUE(Run(JobIn(other, spec, tag + 1, 0, 0), tag + 1).status.ok());
    ASSERT_EQ(std::equal(want.d.begin(), want.d.end(), other->data() + kDAt), true) << tag;
  }
  stop = true;
  client.join();
  EXPECT_TRUE(engine_->healthy());
  EXPECT_EQ(events_.error_count(DeviceErrorKind::kCopy), 0);
}

// Bandwidth of a copy in, for the log: what is pinned must not go through a staging buffer.
TEST_F(GpuRegionTest, CopiesAtTheBussSpeed) {
  if (IsStandIn()) GTEST_SKIP() << "it copies on the host";
  const JobSpec spec{.shape = {.m = 2048, .n = 16, .k = 4096}};
  const SharedRegionRef region = OpenRegion(*engine_, 48 * kMiB);
  Nanos pinned_time = std::chrono::hours(1);
  Nanos region_time = std::chrono::hours(1);
  for (int tag = 0; tag < 20; tag += 2) {
    const Ended pinned = Run(MakeJob(*engine_, spec, inbox_, tag), tag);
    const Ended shared = Run(JobIn(region, spec, tag + 1, 0, 0), tag + 1);
    ASSERT_TRUE(pinned.status.ok() && shared.status.ok());
    pinned_time = std::min(pinned_time, pinned.timings.copy_in);
    region_time = std::min(region_time, shared.timings.copy_in);
  }
  RecordProperty("pinned_copy_in_us", std::to_string(pinned_time.count() / 1000));
  RecordProperty("region_copy_in_us", std::to_string(region_time.count() / 1000));
  EXPECT_LT(region_time, 2 * pinned_time) << "unpinned memory takes several times as long";
}

}  // namespace
}  // namespace tcgemm
