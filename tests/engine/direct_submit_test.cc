// A small job on the thread that submits it: when, and that it is a job like any other.
#include "server/engine/direct_submit.h"

#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "tests/engine/engine_fixture.h"

namespace tcgemm {
namespace {

using Operation = TestDeviceControl::Operation;

TEST(DirectSubmitTest, OneWaitsOnlyForWhatIsSoonOver) {
  EXPECT_EQ(DirectSpin({.flops = 5e10, .flops_per_second = 1e15, .bytes = kMostDirectBytes}),
            kDirectSpin);
  EXPECT_EQ(DirectSpin({.flops = 6e10, .flops_per_second = 1e15, .bytes = 0}), Nanos(0));
  EXPECT_EQ(DirectSpin({.flops = 1, .flops_per_second = 1e15, .bytes = 2 << 20}), Nanos(0));
  EXPECT_TRUE(MaySubmitDirectly(kDirectSpin, true));
  EXPECT_FALSE(MaySubmitDirectly(Nanos(0), true)) << "a large product on the CPU";
  EXPECT_TRUE(MaySubmitDirectly(Nanos(0), false));
}

EngineOptions Direct() {
  EngineOptions options = EngineFixture::DefaultOptions();
  options.direct_submit = true;
  return options;
}

// Whose `done` notes the thread that it ran on.
Job NotingJob(EngineFixture& f, int tag, std::thread::id& ran_on) {
  Job job = MakeJob(*f.engine, {}, f.inbox, tag);
  job.done = [done = std::move(job.done), &ran_on](JobOutcome outcome) {
    ran_on = std::this_thread::get_id();
    done(std::move(outcome));
  };
  return job;
}

struct DeviceKind {
  const char* name;
  TestDeviceOptions options;
};

class DirectJobTest : public testing::TestWithParam<DeviceKind> {};

INSTANTIATE_TEST_SUITE_P(
    Devices, DirectJobTest,
    testing::Values(DeviceKind{"cpu", {.unified_memory = true, .synchronous = true}},
                    DeviceKind{"gpu", {.pitch_alignment = 64}},
                    DeviceKind{"reading_gpu", {.reads_pinned = true, .pitch_alignment = 64}}),
    [](const auto& info) { return std::string(info.param.name); });

TEST_P(DirectJobTest, ALoneSmallJobRunsOnItsOwnThread) {
  for (const bool direct : {false, true}) {
    EngineOptions options = Direct();
    options.direct_submit = direct;
    EngineFixture f(GetParam().options, options);
    std::thread::id ran_on;
    const absl::StatusOr<JobId> id = f.engine->Submit(NotingJob(f, 1, ran_on));
    ASSERT_TRUE(id.ok());
    if (direct) {
      EXPECT_EQ(f.inbox.count(1), 1) << "over when Submit returns";
      EXPECT_EQ(f.engine->pending_jobs(), 0);
      EXPECT_FALSE(f.engine->Cancel(*id, absl::CancelledError("late")));
    }
    const Ended ended = f.inbox.Wait(1);
    EXPECT_TRUE(ended.status.ok()) << ended.status;
    EXPECT_EQ(ended.batched_with, 0);
    EXPECT_EQ(ran_on == std::this_thread::get_id(), direct);
    EXPECT_EQ(f.events.launches, 1);
    EXPECT_EQ(f.device->violation(), "");
  }
}

TEST_P(DirectJobTest, TheSameBits) {
  EngineFixture direct(GetParam().options, Direct());
  EngineFixture queued(GetParam().options);
  for (int tag = 0; tag < 8; ++tag) {
    const JobSpec spec{.shape = {.m = 5, .n = 9, .k = 7},
                       .output = tag % 2 == 0 ? DType::kBf16 : DType::kFp32,
                       .transpose_a = (tag & 2) != 0,
                       .transpose_b = (tag & 4) != 0};
    ASSERT_TRUE(direct.Submit(tag, spec).ok());
    ASSERT_TRUE(queued.Submit(tag, spec).ok());
    EXPECT_EQ(direct.inbox.Wait(tag).d, queued.inbox.Wait(tag).d);
  }
}

TEST_P(DirectJobTest, AFailureFailsThisJobAlone) {
  for (const Operation operation :
       {Operation::kLaunch, Operation::kRecord, Operation::kWait, Operation::kElapsed}) {
    EngineFixture f(GetParam().options, Direct());
    f.device->FailNext(operation);
    ASSERT_TRUE(f.Submit(1).ok());
    EXPECT_EQ(f.inbox.Wait(1).status.code(), absl::StatusCode::kInternal);
    ASSERT_TRUE(f.Submit(2).ok());
    EXPECT_TRUE(f.inbox.Wait(2).status.ok());
  }
}

TEST_P(DirectJobTest, NotWhileAWindowIsOpenNorBeyondALimit) {
  EngineOptions options = Direct();
  options.max_queue_delay = std::chrono::microseconds(1);
  EngineFixture windowed(GetParam().options, options);
  std::thread::id ran_on;
  ASSERT_TRUE(windowed.engine->Submit(NotingJob(windowed, 1, ran_on)).ok());
  EXPECT_TRUE(windowed.inbox.Wait(1).status.ok());
  EXPECT_NE(ran_on, std::this_thread::get_id());

  EngineFixture drained(GetParam().options, Direct());
  drained.engine->Drain();
  EXPECT_EQ(drained.Submit(1).status().code(), absl::StatusCode::kUnavailable);
  EngineFixture late(GetParam().options, Direct());
  EXPECT_EQ(late.Submit(1, {.deadline = TimePoint::min()}).status().code(),
            absl::StatusCode::kDeadlineExceeded);
}

TEST_P(DirectJobTest, ADeviceThatIsLostIsReportedOnce) {
  EngineFixture f(GetParam().options, Direct());
  f.device->Break();
  ASSERT_TRUE(f.Submit(1).ok());
  EXPECT_EQ(f.inbox.Wait(1).status.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(f.Submit(2).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(f.fatal_calls, 1);
}

// Its submitter asks for it, and the completion thread waits.
TEST(DirectSubmitTest, ALargeJobIsSubmittedAtOnceAndEndsElsewhere) {
  EngineFixture f({.flops_per_second = 1}, Direct());
  std::thread::id ran_on;
  ASSERT_TRUE(f.engine->Submit(NotingJob(f, 1, ran_on)).ok());
  EXPECT_EQ(f.device->launches(), 1) << "before Submit returns";
  EXPECT_TRUE(f.inbox.Wait(1).status.ok());
  EXPECT_NE(ran_on, std::this_thread::get_id());
  EngineFixture cpu({.unified_memory = true, .synchronous = true, .flops_per_second = 1}, Direct());
  cpu.device->Hold();
  ASSERT_TRUE(cpu.Submit(2).ok()) << "does not wait in Launch";
  cpu.device->Release();
  EXPECT_TRUE(cpu.inbox.Wait(2).status.ok());
}

// A job whose end does not come within the spin goes to the completion thread, with the watchdog.
TEST(DirectSubmitTest, AHungJobEndsThroughTheWatchdog) {
  EngineOptions options = Direct();
  options.watchdog_min = std::chrono::milliseconds(5);
  EngineFixture f({}, options);
  f.device->Hang();
  f.device->Expire();  // waits return at once, as if their limits had passed
  std::thread::id ran_on;
  ASSERT_TRUE(f.engine->Submit(NotingJob(f, 1, ran_on)).ok());
  const Ended ended = f.inbox.Wait(1);
  EXPECT_EQ(ended.status.code(), absl::StatusCode::kInternal);
  EXPECT_FALSE(ended.had_memory);
  EXPECT_NE(ran_on, std::this_thread::get_id());
  EXPECT_EQ(f.fatal_cause.load(), FatalCause::kWatchdog);
}

// For ThreadSanitizer: callers and the device's threads share slots, streams and counts.
TEST_P(DirectJobTest, ManyCallersAtOnce) {
  constexpr int kThreads = 4;
  constexpr int kJobs = 100;
  TestDeviceOptions device = GetParam().options;
  device.failure_rate = 0.01;
  EngineOptions options = Direct();
  options.pinned_bytes = size_t{16} << 20;
  EngineFixture f(device, options);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&f, t] {
      for (int i = 0; i < kJobs; ++i) {
        const int tag = t * kJobs + i;
        ASSERT_TRUE(f.Submit(tag, {.seed = static_cast<uint64_t>(tag)}).ok());
        if (i % 3 == 0) f.inbox.Wait(tag);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int tag = 0; tag < kThreads * kJobs; ++tag) f.inbox.Wait(tag);
  f.WaitUntilIdle();
  EXPECT_EQ(f.inbox.total(), kThreads * kJobs);
  EXPECT_EQ(f.engine->host_pool().used_bytes(), 0u);
}

}  // namespace
}  // namespace tcgemm
