// The engine from outside, on a device that obeys: admission, batching, ends of jobs.
#include "server/engine/engine.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/engine_fixture.h"

namespace tcgemm {
namespace {

using std::chrono::milliseconds;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr GemmShape kCube64{.m = 64, .n = 64, .k = 64};

EngineOptions WithOptions(void (*change)(EngineOptions&)) {
  EngineOptions options = EngineFixture::DefaultOptions();
  change(options);
  return options;
}

// A device that blocks the submit thread, so that later jobs wait in the queue.
constexpr TestDeviceOptions kSynchronous{.unified_memory = true, .synchronous = true};

TEST(EngineTest, RefusesOptionsOutOfRange) {
  const auto create = [](void (*change)(EngineOptions&), const TestDeviceOptions& device = {}) {
    CountingEvents events;
    auto control = std::make_shared<TestDeviceControl>(device);
    return Engine::Create(WithOptions(change), CreateTestDevice(control), Clock::Real(), &events)
        .status();
  };
  const auto expect_invalid = [](const absl::Status& status, const char* name) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr(name));
  };
  expect_invalid(create([](auto& o) { o.max_batch = 0; }), "max_batch");
  expect_invalid(create([](auto& o) { o.max_batch = 1025; }), "max_batch");
  expect_invalid(create([](auto& o) { o.slots = 0; }), "slots");
  expect_invalid(create([](auto& o) { o.slots = 17; }), "slots");
  expect_invalid(create([](auto& o) { o.max_queue_delay = Nanos(-1); }), "max_queue_delay");
  expect_invalid(create([](auto& o) { o.pinned_bytes = 4095; }), "pinned_bytes");
  expect_invalid(create([](auto& o) { o.max_queue_jobs = 0; }), "max_queue_jobs");
  expect_invalid(create([](auto& o) { o.max_queue_seconds = 0; }), "max_queue_seconds");
  expect_invalid(create([](auto& o) { o.device_bytes = 3 * 255; }), "device_bytes");
  expect_invalid(create([](auto& o) { o.watchdog_min = Nanos(0); }), "watchdog_min");
  expect_invalid(create([](auto& o) { o.max_batch = 256; }, {.max_problems = 255}),
                 "--max-batch is 256, but fake takes at most 255 products in one launch");
  EXPECT_TRUE(create([](auto& o) { o.max_batch = 255; }, {.max_problems = 255}).ok());
  EXPECT_TRUE(create([](auto& o) { o.device_bytes = 0; }, kSynchronous).ok());
  EXPECT_TRUE(create([](auto& o) {
                o.max_batch = 1024;
                o.slots = 16;
              }).ok());
  EXPECT_TRUE(create([](auto& o) {
                o.max_batch = 1;
                o.slots = 1;
                o.max_queue_jobs = 1;
                o.pinned_bytes = 4096;
              }).ok());
}

TEST(EngineTest, RefusesABudgetAboveTheMemoryLimit) {
  CountingEvents events;
  const auto engine =
      Engine::Create(WithOptions([](auto& o) { o.pinned_bytes = size_t{1} << 60; }),
                     CreateTestDevice(std::make_shared<TestDeviceControl>(TestDeviceOptions{})),
                     Clock::Real(), &events);
  EXPECT_EQ(engine.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(engine.status().message()), HasSubstr("--pinned-bytes"));
}

TEST(EngineTest, NamesTheBudgetThatTheDeviceDoesNotHave) {
  CountingEvents events;
  const auto engine =
      Engine::Create(WithOptions([](auto& o) { o.resident_bytes = size_t{1} << 60; }),
                     CreateTestDevice(std::make_shared<TestDeviceControl>(TestDeviceOptions{})),
                     Clock::Real(), &events);
  EXPECT_EQ(engine.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(engine.status().message()),
              HasSubstr("--resident-bytes 1152921504606846976: "));
}

TEST(EngineTest, WindowZeroAddsNoWait) {
  FakeClock clock;
  EngineFixture f({}, EngineFixture::DefaultOptions(), &clock);
  ASSERT_TRUE(f.Submit(1).ok());
  const Ended ended = f.inbox.Wait(1);
  EXPECT_TRUE(ended.status.ok()) << ended.status;
  EXPECT_EQ(ended.timings.queue, Nanos(0));
  EXPECT_EQ(ended.batched_with, 0);
}

TEST(EngineTest, ALoneJobWaitsForTheWindow) {
  FakeClock clock;
  EngineFixture f({}, WithOptions([](auto& o) { o.max_queue_delay = milliseconds(5); }), &clock);
  ASSERT_TRUE(f.Submit(1).ok());
  EXPECT_EQ(f.device->launches(), 0);
  clock.Advance(milliseconds(5));
  EXPECT_EQ(f.inbox.Wait(1).timings.queue, milliseconds(5));
}

TEST(EngineTest, BatchingMayChangeWithinWhatSlotsWereMadeFor) {
  FakeClock clock;
  EngineFixture f({}, WithOptions([](auto& o) {
                    o.max_queue_delay = milliseconds(5);
                    o.max_batch = 24;
                  }),
                  &clock);
  for (const EngineBatching& bad : {EngineBatching{.max_batch = 0}, EngineBatching{.max_batch = 25},
                                    EngineBatching{.max_batch = 1, .max_queue_delay = Nanos(-1)}}) {
    EXPECT_TRUE(absl::IsInvalidArgument(f.engine->SetBatching(bad)));
  }
  EXPECT_EQ(f.engine->batching().max_batch, 24);
  ASSERT_TRUE(f.Submit(1).ok());  // waits for company
  ASSERT_TRUE(f.engine->SetBatching({.max_batch = 1}).ok());
  EXPECT_EQ(f.engine->batching().max_batch, 1);
  EXPECT_EQ(f.engine->batching().max_queue_delay, Nanos(0));
  ASSERT_TRUE(f.Submit(2).ok());
  for (const int id : {1, 2}) EXPECT_TRUE(f.inbox.Wait(id).status.ok());
  EXPECT_THAT(f.device->batch_sizes(), ElementsAre(1, 1));
}

TEST(EngineTest, SimultaneousJobsShareLaunches) {
  FakeClock clock;
  EngineFixture f({}, WithOptions([](auto& o) {
                    o.max_queue_delay = milliseconds(5);
                    o.max_batch = 24;
                    o.device_bytes = size_t{6} << 20;
                  }),
                  &clock);
  for (int i = 0; i < 64; ++i) {
    ASSERT_TRUE(f.Submit(i, {.shape = kCube64, .seed = static_cast<uint64_t>(i)}).ok());
  }
  f.inbox.Wait(47);
  clock.Advance(milliseconds(5));
  for (int i = 0; i < 64; ++i) EXPECT_TRUE(f.inbox.Wait(i).status.ok());
  EXPECT_THAT(f.device->batch_sizes(), ElementsAre(24, 24, 16));
  EXPECT_EQ(f.events.launches, 3);
  EXPECT_EQ(f.events.launched_jobs, 64);
}

TEST(EngineTest, TellsAboutTheLaunch) {
  EngineFixture f(kSynchronous);
  f.SubmitBlocker(0);
  ASSERT_TRUE(f.Submit(1, {.shape = kCube64}).ok());
  ASSERT_TRUE(f.Submit(2, {.shape = kCube64}).ok());
  ASSERT_TRUE(f.Submit(3, {.shape = kCube64, .output = DType::kFp32}).ok());
  EXPECT_EQ(f.events.queue_jobs, 3);
  EXPECT_EQ(f.engine->pending_jobs(), 4);
  f.device->Release();
  const Ended ended = f.inbox.Wait(2);
  EXPECT_EQ(ended.batched_with, 1);
  EXPECT_EQ(ended.kernel, "cpu_plain");
  EXPECT_EQ(ended.timings.kernel, kTestDeviceElapsed);
  EXPECT_EQ(ended.timings.copy_in, Nanos(0));
  EXPECT_NEAR(ended.tflops, 2 * kCube64.flops() / 1e-6 * 1e-12, 1e-9);
  EXPECT_EQ(f.inbox.Wait(3).batched_with, 0);  // another output type, another launch
  f.WaitUntilIdle();
  EXPECT_EQ(f.events.queue_jobs, 0);
  EXPECT_EQ(f.events.queue_bytes, 0);
}

TEST(EngineTest, AHugeProductRidesAlone) {
  EngineFixture f({.unified_memory = true, .synchronous = true, .flops_per_second = 1e6},
                  WithOptions([](auto& o) { o.max_batch = 2; }));
  f.SubmitBlocker(0);
  // Two products of 64³ may share a launch; one of twice that and more may not.
  ASSERT_TRUE(f.Submit(1, {.shape = kCube64}).ok());
  ASSERT_TRUE(f.Submit(2, {.shape = kCube64}).ok());
  ASSERT_TRUE(f.Submit(3, {.shape = {.m = 64, .n = 64, .k = 129}}).ok());
  ASSERT_TRUE(f.Submit(4).ok());
  f.device->Release();
  f.inbox.Wait(4);
  EXPECT_THAT(f.device->batch_sizes(), ElementsAre(1, 2, 1, 1));
}

TEST(EngineTest, CancelledWhileQueuedIsNeverLaunched) {
  EngineFixture f(kSynchronous);
  f.SubmitBlocker(0);
  const auto id = f.Submit(1);
  ASSERT_TRUE(id.ok());
  EXPECT_TRUE(f.engine->Cancel(*id, absl::CancelledError("the caller went away")));
  EXPECT_EQ(f.inbox.count(1), 1);  // on this thread, before Cancel returned
  const Ended ended = f.inbox.Wait(1);
  EXPECT_EQ(ended.status, absl::CancelledError("the caller went away"));
  EXPECT_TRUE(ended.had_memory);
  EXPECT_FALSE(f.engine->Cancel(*id, absl::CancelledError("again")));
  EXPECT_EQ(f.events.cancelled, 1);
  f.device->Release();
  f.WaitUntilIdle();
  EXPECT_EQ(f.device->launches(), 1);
  EXPECT_EQ(f.inbox.count(1), 1);
  EXPECT_EQ(f.engine->host_pool().used_bytes(), 0u);
}

TEST(EngineTest, ARunningOrEndedJobCannotBeCancelled) {
  EngineFixture f(kSynchronous);
  f.device->Hold();
  const auto id = f.Submit(1);
  f.device->WaitForLaunches(1);
  EXPECT_FALSE(f.engine->Cancel(*id, absl::CancelledError("late")));
  f.device->Release();
  EXPECT_TRUE(f.inbox.Wait(1).status.ok());
  EXPECT_FALSE(f.engine->Cancel(*id, absl::CancelledError("later")));
  EXPECT_FALSE(f.engine->Cancel(12345, absl::CancelledError("who?")));
  EXPECT_EQ(f.events.cancelled, 0);
}

TEST(EngineTest, ADeadlineHoldsBehindABlockedJob) {
  for (const bool synchronous : {true, false}) {
    FakeClock clock;
    EngineFixture f({.synchronous = synchronous}, WithOptions([](auto& o) { o.slots = 1; }),
                    &clock);
    f.SubmitBlocker(0);
    ASSERT_TRUE(f.Submit(1, {.deadline = clock.Now() + milliseconds(50)}).ok());
    ASSERT_TRUE(f.Submit(2, {.deadline = clock.Now() + milliseconds(5)}).ok());
    clock.Advance(milliseconds(5));
    EXPECT_EQ(f.inbox.Wait(2).status.code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_EQ(f.inbox.count(1), 0);
    clock.Advance(milliseconds(45));
    EXPECT_EQ(f.inbox.Wait(1).status.code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_EQ(f.inbox.count(0), 0);
    EXPECT_EQ(f.events.cancelled, 2);
    f.device->Release();
    EXPECT_TRUE(f.inbox.Wait(0).status.ok());
    EXPECT_EQ(f.device->launches(), 1);
  }
}

TEST(EngineTest, SubmitRefusesWhatCannotBe) {
  FakeClock clock;
  EngineFixture f({}, EngineFixture::DefaultOptions(), &clock);
  EXPECT_EQ(f.Submit(1, {.deadline = clock.Now()}).status().code(),
            absl::StatusCode::kDeadlineExceeded);
  Job mismatch = MakeJob(*f.engine, {}, f.inbox, 2);
  mismatch.problem.a.cols -= 1;
  EXPECT_EQ(f.engine->Submit(std::move(mismatch)).status().code(),
            absl::StatusCode::kInvalidArgument);
  // 1 MiB a slot: fits the host pool, not the slot.
  const absl::Status large = f.Submit(3, {.shape = {.m = 1024, .n = 8, .k = 512}}).status();
  EXPECT_EQ(large.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(large.message()), HasSubstr("--device-bytes"));
  EXPECT_EQ(f.inbox.total(), 0);
  EXPECT_EQ(f.engine->pending_jobs(), 0);
  EXPECT_EQ(f.engine->host_pool().used_bytes(), 0u);
}

TEST(EngineTest, TheQueueHasALimitOfJobs) {
  EngineFixture f(kSynchronous, WithOptions([](auto& o) { o.max_queue_jobs = 2; }));
  f.SubmitBlocker(0);
  EXPECT_TRUE(f.Submit(1).ok());
  EXPECT_TRUE(f.engine->Admit(Caller{}).ok());
  EXPECT_TRUE(f.Submit(2).ok());
  EXPECT_EQ(f.engine->Admit(Caller{}).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(f.Submit(3).status().code(), absl::StatusCode::kResourceExhausted);
  f.device->Release();
  EXPECT_TRUE(f.inbox.Wait(2).status.ok());
  EXPECT_EQ(f.inbox.count(3), 0);
}

TEST(EngineTest, TheQueueHasALimitOfWork) {
  // 1000 FLOPs may wait; a job has 2·4·5·6 = 240.
  EngineFixture f({.unified_memory = true, .synchronous = true, .flops_per_second = 1000},
                  WithOptions([](auto& o) { o.max_queue_seconds = 1; }));
  f.SubmitBlocker(0);
  const auto huge = f.Submit(1, {.shape = kCube64});  // accepted: nothing else waits
  ASSERT_TRUE(huge.ok());
  EXPECT_EQ(f.Submit(2).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(f.engine->Admit(Caller{}).code(), absl::StatusCode::kResourceExhausted);
  f.engine->Cancel(*huge, absl::CancelledError(""));
  for (int tag = 3; tag < 7; ++tag) EXPECT_TRUE(f.Submit(tag).ok());
  EXPECT_TRUE(f.engine->Admit(Caller{}).ok());  // 40 FLOPs are left
  EXPECT_EQ(f.Submit(7).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(f.Submit(8, {.shape = {.m = 1, .n = 1, .k = 20}}).ok());
  EXPECT_EQ(f.engine->Admit(Caller{}).code(), absl::StatusCode::kResourceExhausted);
}

TEST(EngineTest, TheQueueHasALimitOfBytes) {
  // Three matrices of less than 256 bytes take 256 each.
  EngineFixture f(kSynchronous, WithOptions([](auto& o) { o.queue_bytes = 2 * 768; }));
  f.SubmitBlocker(0);
  EXPECT_TRUE(f.Submit(1).ok());
  EXPECT_TRUE(f.Submit(2).ok());
  EXPECT_EQ(f.events.queue_bytes, 2 * 768);
  EXPECT_EQ(f.Submit(3).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(f.engine->Admit(Caller{}).code(), absl::StatusCode::kResourceExhausted);
}

TEST(EngineTest, DrainFinishesWhatWasAccepted) {
  FakeClock clock;
  EngineFixture f({}, WithOptions([](auto& o) { o.max_queue_delay = std::chrono::seconds(50); }),
                  &clock);
  ASSERT_TRUE(f.Submit(1).ok());
  ASSERT_TRUE(f.Submit(2).ok());
  f.engine->Drain();
  f.engine->Drain();
  // At once: a draining engine does not wait for company.
  EXPECT_TRUE(f.inbox.Wait(1).status.ok());
  EXPECT_TRUE(f.inbox.Wait(2).status.ok());
  EXPECT_EQ(f.engine->Admit(Caller{}).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(f.Submit(3).status().code(), absl::StatusCode::kUnavailable);
  f.WaitUntilIdle();
  EXPECT_EQ(f.engine->host_pool().lease_count(), 0);
}

TEST(EngineTest, TheDestructorEndsEveryJob) {
  for (const bool synchronous : {true, false}) {
    EngineFixture f({.synchronous = synchronous}, WithOptions([](auto& o) { o.slots = 1; }));
    f.SubmitBlocker(0);
    for (int tag = 1; tag <= 5; ++tag) ASSERT_TRUE(f.Submit(tag).ok());
    std::thread stop([&] { f.engine.reset(); });
    // The queued ones end although the running one is held …
    for (int tag = 1; tag <= 5; ++tag) {
      EXPECT_EQ(f.inbox.Wait(tag).status.code(), absl::StatusCode::kUnavailable);
    }
    EXPECT_EQ(f.inbox.count(0), 0);
    f.device->Release();
    stop.join();
    // … and that one ends as usual.
    EXPECT_TRUE(f.inbox.Wait(0).status.ok());
    EXPECT_EQ(f.inbox.total(), 6);
    EXPECT_EQ(f.device->launches(), 1);
  }
}

TEST(EngineTest, EventNames) {
  EXPECT_EQ(StageName(Stage::kReceive), "receive");
  EXPECT_EQ(StageName(Stage::kDecode), "decode");
  EXPECT_EQ(StageName(Stage::kQueue), "queue");
  EXPECT_EQ(StageName(Stage::kCopyIn), "copy_in");
  EXPECT_EQ(StageName(Stage::kKernel), "kernel");
  EXPECT_EQ(StageName(Stage::kVerify), "verify");
  EXPECT_EQ(StageName(static_cast<Stage>(kStageCount - 2)), "copy_out");
  EXPECT_EQ(StageName(static_cast<Stage>(kStageCount - 1)), "send");
  EXPECT_EQ(RejectReasonName(RejectReason::kDraining), "draining");
  EXPECT_EQ(RejectReasonName(RejectReason::kNotReady), "not_ready");
  EXPECT_EQ(RejectReasonName(RejectReason::kInflight), "inflight");
  EXPECT_EQ(RejectReasonName(RejectReason::kQueue), "queue");
  EXPECT_EQ(RejectReasonName(RejectReason::kMemory), "memory");
  EXPECT_EQ(RejectReasonName(RejectReason::kMessage), "message");
  EXPECT_EQ(RejectReasonName(static_cast<RejectReason>(kRejectReasonCount - 1)), "caller");
  EXPECT_EQ(DeviceErrorKindName(DeviceErrorKind::kLaunch), "launch");
  EXPECT_EQ(DeviceErrorKindName(DeviceErrorKind::kCopy), "copy");
  EXPECT_EQ(DeviceErrorKindName(DeviceErrorKind::kEvent), "event");
  EXPECT_EQ(DeviceErrorKindName(DeviceErrorKind::kSelfTest), "self_test");
  EXPECT_EQ(DeviceErrorKindName(static_cast<DeviceErrorKind>(kDeviceErrorKindCount - 1)),
            "watchdog");
}

}  // namespace
}  // namespace tcgemm
