// Many threads, a device that fails at random: every accepted job ends exactly once, and nothing
// leaks. Written for ThreadSanitizer; it means less without.
#include <random>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "tests/engine/engine_fixture.h"

namespace tcgemm {
namespace {

constexpr int kThreads = 4;
constexpr int kJobsPerThread = 150;

struct StressCase {
  const char* name;
  TestDeviceOptions device;
  int drain_after = -1;  // jobs of the first thread
  int break_after = -1;
};

class EngineStressTest : public testing::TestWithParam<StressCase> {};

INSTANTIATE_TEST_SUITE_P(
    Devices, EngineStressTest,
    testing::Values(StressCase{"cpu",
                               {.unified_memory = true, .synchronous = true, .failure_rate = 0.02}},
                    StressCase{"gpu", {.failure_rate = 0.02, .seed = 2}},
                    StressCase{"gpu_that_works", {.seed = 3}},
                    StressCase{"drained", {.failure_rate = 0.02, .seed = 4}, 75},
                    StressCase{"lost", {.failure_rate = 0.02, .seed = 5}, -1, 75},
                    StressCase{"cpu_lost", {.unified_memory = true, .synchronous = true}, -1, 75}),
    [](const auto& info) { return std::string(info.param.name); });

// Submits, cancels some, and returns the tags of accepted jobs.
std::vector<int> SubmitMany(EngineFixture& f, const StressCase& stress, int thread) {
  std::mt19937 random(thread);
  std::vector<int> accepted;
  JobId previous = 0;
  for (int i = 0; i < kJobsPerThread; ++i) {
    const int tag = thread * kJobsPerThread + i;
    const auto side = [&] { return static_cast<int64_t>(1 + random() % 16); };
    JobSpec spec{.shape = {.m = side(), .n = side(), .k = side()},
                 .output = random() % 3 == 0 ? DType::kFp32 : DType::kBf16,
                 .transpose_a = random() % 2 == 0,
                 .seed = random()};
    if (random() % 4 == 0) {
      spec.deadline = Clock::Real()->Now() + std::chrono::microseconds(random() % 2000);
    }
    const absl::StatusOr<JobId> id = f.Submit(tag, spec);
    if (id.ok()) {
      accepted.push_back(tag);
      if (random() % 3 == 0) f.engine->Cancel(*id, absl::CancelledError("at once"));
      if (random() % 5 == 0) f.engine->Cancel(previous, absl::CancelledError("late"));
      previous = *id;
    }
    if (thread == 0 && i == stress.drain_after) f.engine->Drain();
    if (thread == 0 && i == stress.break_after) f.device->Break();
  }
  return accepted;
}

TEST_P(EngineStressTest, EveryAcceptedJobEndsOnce) {
  EngineOptions options = EngineFixture::DefaultOptions();
  options.pinned_bytes = size_t{16} << 20;  // every job at once
  options.max_batch = 5;
  options.max_queue_delay = std::chrono::microseconds(200);
  options.max_queue_jobs = 64;
  EngineFixture f(GetParam().device, options);
  std::vector<std::vector<int>> accepted(kThreads);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] { accepted[t] = SubmitMany(f, GetParam(), t); });
  }
  for (std::thread& thread : threads) thread.join();
  int expected = 0;
  for (const std::vector<int>& tags : accepted) {
    for (const int tag : tags) {
      const Ended ended = f.inbox.Wait(tag);
      EXPECT_TRUE(ended.had_memory);
      ++expected;
    }
  }
  f.WaitUntilIdle();
  EXPECT_EQ(f.inbox.total(), expected);  // none twice, no refused one
  EXPECT_GT(expected, 0);
  EXPECT_EQ(f.engine->host_pool().used_bytes(), 0u);
  EXPECT_EQ(f.events.queue_jobs, 0);
  EXPECT_EQ(f.events.queue_bytes, 0);
  EXPECT_EQ(f.engine->healthy(), GetParam().break_after < 0);
}

// The engine goes away under its submitters' last jobs.
TEST_P(EngineStressTest, TheDestructorLosesNothing) {
  for (int round = 0; round < 10; ++round) {
    EngineFixture f(GetParam().device);
    std::vector<int> accepted;
    for (int tag = 0; tag < 30; ++tag) {
      if (f.Submit(tag).ok()) accepted.push_back(tag);
    }
    f.engine.reset();
    for (const int tag : accepted) EXPECT_EQ(f.inbox.count(tag), 1);
    EXPECT_EQ(f.inbox.total(), static_cast<int>(accepted.size()));
  }
}

}  // namespace
}  // namespace tcgemm
