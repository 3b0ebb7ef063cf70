// The worker through the engine: copies, slabs, errors, a lost device.
#include "server/engine/device_worker.h"

#include <cstring>
#include <ostream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "matrix/bf16.h"
#include "tests/engine/engine_fixture.h"

namespace tcgemm {
namespace {

using testing::HasSubstr;
using Operation = TestDeviceControl::Operation;

struct DeviceKind {
  const char* name;
  TestDeviceOptions options;
};
// In the names of the tests; gtest would write the bytes, and so a pointer that is never the same.
void PrintTo(const DeviceKind& kind, std::ostream* out) { *out << kind.name; }

class EveryDeviceTest : public testing::TestWithParam<DeviceKind> {};

INSTANTIATE_TEST_SUITE_P(
    Devices, EveryDeviceTest,
    testing::Values(DeviceKind{"cpu", {.unified_memory = true, .synchronous = true}},
                    DeviceKind{"unified_gpu", {.unified_memory = true}},
                    DeviceKind{"gpu", {.pitch_alignment = 64}},
                    DeviceKind{"reading_gpu", {.reads_pinned = true, .pitch_alignment = 64}},
                    DeviceKind{"blocking_gpu", {.synchronous = true, .pitch_alignment = 8}}),
    [](const auto& info) { return std::string(info.param.name); });

TEST_P(EveryDeviceTest, PassesTheSelfTest) {
  EngineFixture f(GetParam().options);
  const absl::Status status = f.engine->SelfTest();
  EXPECT_TRUE(status.ok()) << status;
  f.WaitUntilIdle();
  EXPECT_EQ(f.engine->host_pool().used_bytes(), 0u);
  EXPECT_GE(f.events.launched_jobs, 40);
  EXPECT_EQ(f.events.healthy, 1);
}

TEST_P(EveryDeviceTest, AWrongDeviceFailsTheSelfTest) {
  TestDeviceOptions options = GetParam().options;
  options.wrong = true;
  EngineFixture f(options);
  const absl::Status status = f.engine->SelfTest();
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(status.message()), HasSubstr("1x1x1 NN bf16 on cpu_plain: D[0,0]"));
  EXPECT_EQ(f.events.error_count(DeviceErrorKind::kSelfTest), 1);
}

TEST_P(EveryDeviceTest, CountsTheBytesThatMove) {
  EngineFixture f(GetParam().options);
  ASSERT_TRUE(f.Submit(1, {.shape = {.m = 3, .n = 5, .k = 7}, .output = DType::kFp32}).ok());
  ASSERT_TRUE(f.inbox.Wait(1).status.ok());
  const bool unified = GetParam().options.unified_memory;
  EXPECT_EQ(f.events.bytes_in, unified ? 0 : (3 * 7 + 7 * 5) * 2);
  EXPECT_EQ(f.events.bytes_out, unified ? 0 : 3 * 5 * 4);
}

TEST(DeviceWorkerTest, ASmallBatchIsNotCopiedToADeviceThatReadsHostMemory) {
  for (const bool reads_pinned : {false, true}) {
    EngineFixture f({.reads_pinned = reads_pinned, .pitch_alignment = 64});
    f.device->FailNext(Operation::kCopyIn);
    ASSERT_TRUE(f.Submit(1, {.shape = {.m = 8, .n = 8, .k = 7}}).ok());
    EXPECT_EQ(f.inbox.Wait(1).status.ok(), reads_pinned) << "no copy is there to fail";
    // Larger than the limit.
    f.device->FailNext(Operation::kCopyOut);
    ASSERT_TRUE(f.Submit(2, {.shape = {.m = 512, .n = 512, .k = 8}}).ok());
    EXPECT_FALSE(f.inbox.Wait(2).status.ok());
  }
}

// Of a batch that is copied, too: a device that reads pinned memory writes its flag there.
TEST(DeviceWorkerTest, ReportsNonfiniteResultsOfACopiedBatch) {
  for (const bool reads_pinned : {false, true}) {
    EngineFixture f({.reads_pinned = reads_pinned, .pitch_alignment = 64});
    JobSpec spec = {.shape = {.m = 8, .n = 2048, .k = 192}};  // B takes 768 KiB
    for (int tag = 0; tag < 3; ++tag) {
      spec.nan_filled = tag == 1;
      ASSERT_TRUE(f.Submit(tag, spec).ok());
      ASSERT_TRUE(f.inbox.Wait(tag).status.ok());
      EXPECT_EQ(f.events.nonfinite, tag == 0 ? 0 : 1);
    }
    EXPECT_EQ(f.events.bytes_out, 3 * 8 * 2048 * 2);
    EXPECT_EQ(f.device->violation(), "");
  }
}

TEST_P(EveryDeviceTest, ReportsNonfiniteResults) {
  EngineFixture f(GetParam().options);
  uint32_t flags[2] = {};
  for (int tag = 0; tag < 2; ++tag) {
    Job job = MakeJob(*f.engine, {.nan_filled = tag == 1}, f.inbox, tag);
    job.problem.nonfinite = &flags[tag];
    ASSERT_TRUE(f.engine->Submit(std::move(job)).ok());
    ASSERT_TRUE(f.inbox.Wait(tag).status.ok());
  }
  EXPECT_EQ(flags[0], 0u);
  EXPECT_EQ(flags[1], 1u);
  EXPECT_EQ(f.events.nonfinite, 1);
  // The flag of the slot is cleared for its next batch.
  ASSERT_TRUE(f.Submit(2).ok());
  ASSERT_TRUE(f.inbox.Wait(2).status.ok());
  EXPECT_EQ(f.events.nonfinite, 1);
}

TEST_P(EveryDeviceTest, AFailedOperationFailsItsBatchOnly) {
  const bool unified = GetParam().options.unified_memory;
  const std::pair<Operation, DeviceErrorKind> cases[] = {
      {Operation::kCopyIn, DeviceErrorKind::kCopy},
      {Operation::kCopyOut, DeviceErrorKind::kCopy},
      {Operation::kLaunch, DeviceErrorKind::kLaunch},
      {Operation::kRecord, DeviceErrorKind::kEvent},
      {Operation::kWait, DeviceErrorKind::kEvent},
      {Operation::kElapsed, DeviceErrorKind::kEvent},
  };
  for (const auto& [operation, kind] : cases) {
    if ((unified || GetParam().options.reads_pinned) && kind == DeviceErrorKind::kCopy) continue;
    EngineFixture f(GetParam().options);
    f.device->FailNext(operation);
    ASSERT_TRUE(f.Submit(1).ok());
    const Ended failed = f.inbox.Wait(1);
    EXPECT_EQ(failed.status.code(), absl::StatusCode::kInternal);
    EXPECT_THAT(std::string(failed.status.message()), HasSubstr("told to fail"));
    EXPECT_TRUE(failed.had_memory);
    EXPECT_EQ(f.events.error_count(kind), 1);
    ASSERT_TRUE(f.Submit(2).ok());
    EXPECT_TRUE(f.inbox.Wait(2).status.ok());
    EXPECT_TRUE(f.engine->healthy());
    EXPECT_EQ(f.fatal_calls, 0);
  }
}

TEST_P(EveryDeviceTest, ALostDeviceEndsEverything) {
  EngineOptions options = EngineFixture::DefaultOptions();
  options.slots = 1;
  EngineFixture f(GetParam().options, options);
  f.SubmitBlocker(0);
  for (int tag = 1; tag <= 3; ++tag) ASSERT_TRUE(f.Submit(tag).ok());
  f.device->Break();
  f.device->Release();
  EXPECT_EQ(f.inbox.Wait(0).status.code(), absl::StatusCode::kInternal);
  for (int tag = 1; tag <= 3; ++tag) {
    const Ended ended = f.inbox.Wait(tag);
    EXPECT_EQ(ended.status.code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(std::string(ended.status.message()), HasSubstr("context lost"));
  }
  EXPECT_FALSE(f.engine->healthy());
  EXPECT_EQ(f.engine->Admit(Caller{}).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(f.Submit(4).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(f.events.healthy, 0);
  f.engine.reset();
  EXPECT_EQ(f.fatal_calls, 1);
  EXPECT_EQ(f.fatal_cause.load(), FatalCause::kDeviceLost);
  EXPECT_EQ(f.inbox.total(), 4);
}

TEST_P(EveryDeviceTest, AHungDeviceEndsEverything) {
  EngineOptions options = EngineFixture::DefaultOptions();
  options.slots = 1;
  EngineFixture f(GetParam().options, options);
  f.device->Hang();
  f.SubmitBlocker(0);
  for (int tag = 1; tag <= 3; ++tag) ASSERT_TRUE(f.Submit(tag).ok());
  f.device->Expire();
  f.device->Release();
  const Ended hung = f.inbox.Wait(0);
  EXPECT_EQ(hung.status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(hung.status.message()),
              HasSubstr("watchdog: a batch of 1 (first 4x5x6) did not end within 1 s"));
  EXPECT_FALSE(hung.had_memory);
  for (int tag = 1; tag <= 3; ++tag) {
    const Ended ended = f.inbox.Wait(tag);
    EXPECT_EQ(ended.status.code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(std::string(ended.status.message()), HasSubstr("device fake hangs: watchdog"));
    EXPECT_TRUE(ended.had_memory);
  }
  EXPECT_FALSE(f.engine->healthy());
  EXPECT_EQ(f.events.healthy, 0);
  EXPECT_EQ(f.engine->Admit(Caller{}).code(), absl::StatusCode::kUnavailable);
  f.WaitUntilIdle();
  // The device may still write to the lease of the job that hung, and to no other.
  EXPECT_EQ(f.engine->host_pool().lease_count(), 1);
  EXPECT_EQ(f.events.error_count(DeviceErrorKind::kWatchdog), 1);
  f.engine.reset();  // returns
  EXPECT_EQ(f.fatal_calls, 1);
  EXPECT_EQ(f.fatal_cause.load(), FatalCause::kWatchdog);
  EXPECT_EQ(f.inbox.total(), 4);
}

TEST(DeviceWorkerTest, ABatchFitsItsSlab) {
  // One slot of 16 KiB: beside the flags it holds three such products, not four.
  EngineOptions options = EngineFixture::DefaultOptions();
  options.slots = 1;
  options.device_bytes = 16 << 10;
  EngineFixture f({.pitch_alignment = 16}, options);
  f.SubmitBlocker(0);
  const JobSpec spec{.shape = {.m = 64, .n = 16, .k = 16}};  // 2048 + 512 + 2048 bytes
  for (int tag = 1; tag <= 7; ++tag) ASSERT_TRUE(f.Submit(tag, spec).ok());
  f.device->Release();
  for (int tag = 1; tag <= 7; ++tag) EXPECT_TRUE(f.inbox.Wait(tag).status.ok());
  EXPECT_THAT(f.device->batch_sizes(), testing::ElementsAre(1, 3, 3, 1));
}

TEST(DeviceWorkerTest, AProductMayFillItsSlab) {
  EngineOptions options = EngineFixture::DefaultOptions();
  options.slots = 1;
  options.device_bytes = 8192;  // 7936 beside the flags of 64 jobs
  EngineFixture f({.pitch_alignment = 16}, options);
  const auto spec = [](int64_t m) { return JobSpec{.shape = {.m = m, .n = 16, .k = 128}}; };
  // m·128·2 + 4096 + m·16·2 bytes, each matrix rounded up to 256: 13 rows take 3328 + 4096 + 512.
  ASSERT_TRUE(f.Submit(1, spec(13)).ok());
  EXPECT_TRUE(f.inbox.Wait(1).status.ok());
  EXPECT_EQ(f.Submit(2, spec(14)).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(DeviceWorkerTest, AFastestProductIsAloneAndHasTheRestOfItsSlab) {
  EngineOptions options = EngineFixture::DefaultOptions();
  options.slots = 1;
  EngineFixture f({}, options);
  f.SubmitBlocker(0);
  for (int tag = 1; tag <= 4; ++tag) {
    ASSERT_TRUE(f.Submit(tag, {.seed = 7, .fastest = tag == 3}).ok());
  }
  f.device->Release();
  for (int tag = 1; tag <= 4; ++tag) {
    const Ended ended = f.inbox.Wait(tag);
    ASSERT_TRUE(ended.status.ok()) << ended.status;
    EXPECT_EQ(ended.batched_with, tag <= 2 ? 1 : 0);
    EXPECT_EQ(ended.d, f.inbox.Wait(1).d) << "its operands lie elsewhere than the rest";
  }
  EXPECT_THAT(f.device->batch_sizes(), testing::ElementsAre(1, 2, 1, 1));
  EXPECT_EQ(f.device->workspaces(), 1);
}

TEST(DeviceWorkerTest, SlotsKeepSeveralBatchesInFlight) {
  EngineOptions options = EngineFixture::DefaultOptions();
  options.max_batch = 1;
  EngineFixture f({}, options);
  f.device->Hold();
  for (int tag = 0; tag < 5; ++tag) ASSERT_TRUE(f.Submit(tag).ok());
  f.device->WaitForLaunches(3);  // would hang with one slot: nothing has ended yet
  EXPECT_EQ(f.inbox.total(), 0);
  EXPECT_EQ(f.events.queue_jobs, 2);
  f.device->Release();
  f.WaitUntilIdle();
  EXPECT_EQ(f.inbox.total(), 5);
}

TEST(DeviceWorkerTest, BatchesInFlightShareTheWatchdogsPatience) {
  // 0.5 s each: 50 times three of them.
  EngineOptions options = EngineFixture::DefaultOptions();
  options.max_batch = 1;
  EngineFixture f({.flops_per_second = 2 * 4 * 5 * 6 * 2}, options);
  f.device->Hang();
  for (int tag = 0; tag < 3; ++tag) ASSERT_TRUE(f.Submit(tag).ok());
  f.device->WaitForLaunches(3);
  f.device->Expire();
  for (int tag = 0; tag < 3; ++tag) {
    const Ended ended = f.inbox.Wait(tag);
    EXPECT_EQ(ended.status.code(), absl::StatusCode::kInternal);
    EXPECT_FALSE(ended.had_memory);
  }
  EXPECT_EQ(std::chrono::duration_cast<std::chrono::seconds>(f.device->waited()).count(), 75);
  EXPECT_EQ(f.events.error_count(DeviceErrorKind::kWatchdog), 1);
  EXPECT_EQ(f.engine->host_pool().lease_count(), 3);
  f.engine.reset();
  EXPECT_EQ(f.fatal_calls, 1);
}

TEST(DeviceWorkerTest, ABatchThatEndedBeforeTheHangIsAnswered) {
  EngineOptions options = EngineFixture::DefaultOptions();
  options.watchdog_min = std::chrono::milliseconds(5);
  EngineFixture f({}, options);
  ASSERT_TRUE(f.Submit(0).ok());
  EXPECT_TRUE(f.inbox.Wait(0).status.ok());
  f.device->Hang();
  f.device->Expire();
  ASSERT_TRUE(f.Submit(1).ok());
  EXPECT_EQ(f.inbox.Wait(1).status.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(f.device->waited(), std::chrono::milliseconds(5));
}

TEST(DeviceWorkerTest, CountsTensorMaps) {
  EngineFixture f;
  for (int tag = 0; tag < 3; ++tag) {
    ASSERT_TRUE(f.Submit(tag).ok());
    ASSERT_TRUE(f.inbox.Wait(tag).status.ok());
  }
  EXPECT_EQ(f.events.map_hits, 6);
  EXPECT_EQ(f.events.map_misses, 3);
}

TEST(DeviceWorkerTest, ALostDeviceIsReportedOnce) {
  EngineOptions options = EngineFixture::DefaultOptions();
  options.max_batch = 1;
  EngineFixture f({}, options);
  f.device->Hold();
  for (int tag = 0; tag < 3; ++tag) ASSERT_TRUE(f.Submit(tag).ok());
  f.device->WaitForLaunches(3);
  f.device->Break();
  f.device->Release();
  for (int tag = 0; tag < 3; ++tag) {
    EXPECT_EQ(f.inbox.Wait(tag).status.code(), absl::StatusCode::kInternal);
  }
  f.engine.reset();
  int errors = 0;  // of any kind: the third batch may still have been on its way in
  for (const auto& count : f.events.errors) errors += count;
  EXPECT_GE(errors, 3);
  EXPECT_EQ(f.fatal_calls, 1);
}

}  // namespace
}  // namespace tcgemm
