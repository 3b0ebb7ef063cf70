// Large products that are alone leave the device in bands: the same bits, wherever operands lie.
#include <cstring>

#include "gtest/gtest.h"
#include "server/engine/row_bands.h"
#include "tests/engine/engine_fixture.h"
#include "tests/engine/region_jobs.h"

namespace tcgemm {
namespace {

// D in fp32 has 8.6 MiB, two bands; K is small so that the plain loops of the test device are
// quick. The product is of a device fast enough to be worth bands, or of one too slow for them.
constexpr GemmShape kShape{.m = 1100, .n = 2048, .k = 2};
constexpr TestDeviceOptions kBands{.pitch_alignment = 64, .flops_per_second = 1e15};
constexpr TestDeviceOptions kWhole{.pitch_alignment = 64, .flops_per_second = 1e9};

JobSpec Large(uint64_t seed) { return {.shape = kShape, .output = DType::kFp32, .seed = seed}; }

EngineOptions Roomy() {
  EngineOptions options = EngineFixture::DefaultOptions();
  options.pinned_bytes = size_t{64} << 20;
  options.device_bytes = size_t{192} << 20;
  options.shared.total_bytes = size_t{32} << 20;
  return options;
}

TEST(EngineBandsTest, TheSameBitsInBandsAndWhole) {
  EngineFixture bands(kBands, Roomy());
  EngineFixture whole(kWhole, Roomy());
  for (int tag = 0; tag < 4; ++tag) {
    JobSpec spec = Large(3);
    spec.transpose_a = (tag & 1) != 0;
    spec.transpose_b = (tag & 2) != 0;
    ASSERT_TRUE(bands.Submit(tag, spec).ok());
    ASSERT_TRUE(whole.Submit(tag, spec).ok());
    const Ended in_bands = bands.inbox.Wait(tag);
    ASSERT_TRUE(in_bands.status.ok()) << in_bands.status;
    EXPECT_TRUE(in_bands.d == whole.inbox.Wait(tag).d) << tag;
    EXPECT_EQ(in_bands.timings.kernel, 2 * kTestDeviceElapsed);
  }
  EXPECT_EQ(bands.device->launches(), 8);
  EXPECT_EQ(whole.device->launches(), 4);
  EXPECT_EQ(bands.events.launches, 4) << "one launch of one job, in two parts";
  EXPECT_EQ(bands.events.bytes_in, whole.events.bytes_in);
  EXPECT_EQ(bands.events.bytes_out, whole.events.bytes_out);
  EXPECT_EQ(bands.device->violation(), "");
}

TEST(EngineBandsTest, WithEveryEpilogue) {
  EngineFixture bands(kBands, Roomy());
  EngineFixture whole(kWhole, Roomy());
  int tag = 0;
  for (const EpilogueCase& epilogue : EpilogueCases()) {
    if (epilogue.beta == 0 && epilogue.bias == BiasAxis::kNone) continue;  // nothing has rows
    JobSpec spec = Large(4);
    spec.epilogue = epilogue;
    ASSERT_TRUE(bands.Submit(tag, spec).ok());
    ASSERT_TRUE(whole.Submit(tag, spec).ok());
    EXPECT_TRUE(bands.inbox.Wait(tag).d == whole.inbox.Wait(tag).d) << tag;
    ++tag;
  }
  EXPECT_EQ(bands.device->violation(), "");
}

TEST(EngineBandsTest, NoBandsBesideCompany) {
  EngineOptions options = Roomy();
  options.slots = 1;
  EngineFixture f(kBands, options);
  f.SubmitBlocker(0);
  for (int tag = 1; tag <= 2; ++tag) ASSERT_TRUE(f.Submit(tag, Large(1)).ok());
  f.device->Release();
  for (int tag = 1; tag <= 2; ++tag) EXPECT_EQ(f.inbox.Wait(tag).batched_with, 1);
  EXPECT_EQ(f.device->launches(), 2);
}

TEST(EngineBandsTest, IntoSharedMemoryAndNowhereElse) {
  EngineFixture f(kBands, Roomy());
  ASSERT_TRUE(f.Submit(1, Large(1)).ok());
  const Ended alone = f.inbox.Wait(1);
  const SharedRegionRef region = OpenRegion(*f.engine, size_t{16} << 20);
  std::memset(region->data(), 0xff, region->bytes());
  Job job = MakeJob(*f.engine, Large(1), f.inbox, 2);
  job.problem.d.data = region->data();
  job.problem.d.ld = kShape.n;
  job.regions.d = region;
  job.done = [&f](JobOutcome outcome) { f.inbox.Put(2, {.status = outcome.status}); };
  ASSERT_TRUE(f.engine->Submit(std::move(job)).ok());
  ASSERT_TRUE(f.inbox.Wait(2).status.ok());
  EXPECT_EQ(std::memcmp(region->data(), alone.d.data(), alone.d.size()), 0);
  EXPECT_EQ(region->data()[alone.d.size()], std::byte{0xff}) << "beyond D";
}

TEST(EngineBandsTest, ANonfiniteBandIsNoticed) {
  EngineFixture f(kBands, Roomy());
  JobSpec spec = Large(1);
  spec.nan_filled = true;
  ASSERT_TRUE(f.Submit(1, spec).ok());
  ASSERT_TRUE(f.inbox.Wait(1).status.ok());
  EXPECT_EQ(f.events.nonfinite, 1);
  ASSERT_TRUE(f.Submit(2, Large(1)).ok());
  ASSERT_TRUE(f.inbox.Wait(2).status.ok());
  EXPECT_EQ(f.events.nonfinite, 1);
}

// Whatever fails, the job ends after the device has stopped, and the slot is as good as new.
TEST(EngineBandsTest, AFailureInAnyBandFailsTheJob) {
  using Operation = TestDeviceControl::Operation;
  for (const Operation operation : {Operation::kCopyIn, Operation::kCopyOut, Operation::kLaunch,
                                    Operation::kRecord, Operation::kWait, Operation::kElapsed}) {
    EngineFixture f(kBands, Roomy());
    f.device->FailNext(operation);
    ASSERT_TRUE(f.Submit(1, Large(1)).ok());
    EXPECT_EQ(f.inbox.Wait(1).status.code(), absl::StatusCode::kInternal);
    ASSERT_TRUE(f.Submit(2, Large(9)).ok());
    EXPECT_TRUE(f.inbox.Wait(2).status.ok());
    EXPECT_TRUE(f.engine->healthy());
    EXPECT_EQ(f.device->violation(), "");
  }
}

}  // namespace
}  // namespace tcgemm
