#include "base/thread_pool.h"

#include <gtest/gtest.h>
#include <pthread.h>

#include <atomic>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"

namespace tcgemm {
namespace {

// Opened once; waits until then. Counts who arrived.
class Gate {
 public:
  void Open() {
    MutexLock lock(&mutex_);
    open_ = true;
    changed_.NotifyAll();
  }
  void Pass() {
    MutexLock lock(&mutex_);
    ++arrived_;
    changed_.NotifyAll();
    while (!open_) changed_.Wait(&mutex_);
  }
  void AwaitArrivals(int count) {
    MutexLock lock(&mutex_);
    while (arrived_ < count) changed_.Wait(&mutex_);
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  bool open_ ABSL_GUARDED_BY(mutex_) = false;
  int arrived_ ABSL_GUARDED_BY(mutex_) = 0;
};

TEST(ThreadPoolTest, RunsEveryTaskOnceAndTheDestructorFinishesTheQueue) {
  constexpr int kTasks = 500;
  std::vector<std::atomic<int>> runs(kTasks);
  {
    ThreadPool pool("test", 3, kTasks);
    EXPECT_EQ(pool.threads(), 3);
    for (int i = 0; i < kTasks; ++i) {
      ASSERT_TRUE(pool.TrySchedule([&runs, i] { runs[i].fetch_add(1); }));
    }
  }
  for (int i = 0; i < kTasks; ++i) EXPECT_EQ(runs[i].load(), 1) << i;
}

TEST(ThreadPoolTest, TasksRunInOrderOnOneThread) {
  std::vector<int> order;
  {
    ThreadPool pool("test", 1, 10);
    for (int i = 0; i < 10; ++i) {
      ASSERT_TRUE(pool.TrySchedule([&order, i] { order.push_back(i); }));
    }
  }
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
}

TEST(ThreadPoolTest, WhatIsNextGoesBeforeWhatWaits) {
  Gate gate;
  std::vector<int> order;
  {
    ThreadPool pool("test", 1, 4);
    ASSERT_TRUE(pool.TrySchedule([&] { gate.Pass(); }));
    gate.AwaitArrivals(1);
    for (const int i : {1, 2}) {
      ASSERT_TRUE(pool.TrySchedule([&order, i] { order.push_back(i); }));
    }
    ASSERT_TRUE(pool.TryScheduleNext([&order] { order.push_back(3); }));
    ASSERT_TRUE(pool.TryScheduleNext([&order] { order.push_back(4); }));
    EXPECT_FALSE(pool.TryScheduleNext([&order] { order.push_back(5); })) << "beyond the limit";
    gate.Open();
  }
  EXPECT_EQ(order, (std::vector<int>{4, 3, 1, 2}));
}

TEST(ThreadPoolTest, AFullQueueRefusesAndDoesNotRunTheTask) {
  Gate gate;
  std::atomic<int> queued_runs{0};
  bool refused_ran = false;
  {
    ThreadPool pool("test", 1, 2);
    ASSERT_TRUE(pool.TrySchedule([&gate] { gate.Pass(); }));
    gate.AwaitArrivals(1);  // the running task waits in no queue
    EXPECT_TRUE(pool.TrySchedule([&queued_runs] { queued_runs.fetch_add(1); }));
    EXPECT_TRUE(pool.TrySchedule([&queued_runs] { queued_runs.fetch_add(1); }));
    EXPECT_FALSE(pool.TrySchedule([&refused_ran] { refused_ran = true; }));
    gate.Open();
  }
  EXPECT_EQ(queued_runs.load(), 2);
  EXPECT_FALSE(refused_ran);
}

TEST(ThreadPoolTest, ThreadsRunAtOnce) {
  Gate gate;
  ThreadPool pool("test", 2, 2);
  ASSERT_TRUE(pool.TrySchedule([&gate] { gate.Pass(); }));
  ASSERT_TRUE(pool.TrySchedule([&gate] { gate.Pass(); }));
  gate.AwaitArrivals(2);  // would hang with one thread
  gate.Open();
}

TEST(ThreadPoolTest, ThreadsCarryTheNameCutTo15Bytes) {
  std::string name(16, '\0');
  {
    ThreadPool pool("a-name-of-20-bytes!!", 1, 1);
    ASSERT_TRUE(pool.TrySchedule(
        [&name] { pthread_getname_np(pthread_self(), name.data(), name.size()); }));
  }
  EXPECT_STREQ(name.c_str(), "a-name-of-20-by");
}

TEST(ThreadPoolTest, DropsATaskAfterItRan) {
  auto owned = std::make_shared<int>(1);
  const std::weak_ptr<int> watch = owned;
  {
    ThreadPool pool("test", 1, 1);
    ASSERT_TRUE(pool.TrySchedule([owned = std::move(owned)] {}));
  }
  EXPECT_TRUE(watch.expired());
}

TEST(SerialRunnerTest, RunsInOrderInTheCaller) {
  SerialRunner runner;
  EXPECT_EQ(runner.width(), 1);
  std::vector<int64_t> seen;
  const std::thread::id caller = std::this_thread::get_id();
  runner.Run(4, [&](int64_t index, int worker) {
    EXPECT_EQ(worker, 0);
    EXPECT_EQ(std::this_thread::get_id(), caller);
    seen.push_back(index);
  });
  EXPECT_EQ(seen, (std::vector<int64_t>{0, 1, 2, 3}));
}

class PoolRunnerTest : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Widths, PoolRunnerTest, testing::Values(1, 2, 5));

TEST_P(PoolRunnerTest, RunsEveryIndexOnceLoopAfterLoop) {
  PoolRunner runner(GetParam());
  EXPECT_EQ(runner.width(), GetParam());
  for (const int64_t count : {0, 1, 2, 7, 1000, 3, 1, 0, 100}) {
    std::vector<std::atomic<int>> runs(count);
    runner.Run(count, [&runs](int64_t index, int) { runs[index].fetch_add(1); });
    for (int64_t i = 0; i < count; ++i) ASSERT_EQ(runs[i].load(), 1) << i << " of " << count;
  }
}

TEST_P(PoolRunnerTest, ShortLoopsInARowDoNotMixTheirIterations) {
  PoolRunner runner(GetParam());
  for (int loop = 0; loop < 2000; ++loop) {
    std::atomic<int> sum{0};
    runner.Run(3, [&sum, loop](int64_t index, int) { sum.fetch_add(loop + (index == 2)); });
    ASSERT_EQ(sum.load(), 3 * loop + 1);
  }
}

TEST_P(PoolRunnerTest, NoTwoCallsAtOnceShareAWorkerNumber) {
  const int width = GetParam();
  PoolRunner runner(width);
  std::vector<std::atomic<int>> busy(width);
  std::atomic<int> collisions{0};
  std::atomic<int> out_of_range{0};
  runner.Run(5000, [&](int64_t, int worker) {
    if (worker < 0 || worker >= width) {
      out_of_range.fetch_add(1);
      return;
    }
    if (busy[worker].fetch_add(1) != 0) collisions.fetch_add(1);
    busy[worker].fetch_sub(1);
  });
  EXPECT_EQ(out_of_range.load(), 0);
  EXPECT_EQ(collisions.load(), 0);
}

TEST(PoolRunnerWidthTest, TwoIterationsRunAtOnce) {
  PoolRunner runner(2);
  Gate gate;
  std::set<int> workers;
  Mutex mutex;
  runner.Run(2, [&](int64_t index, int worker) {
    {
      MutexLock lock(&mutex);
      workers.insert(worker);
    }
    if (index == 0) gate.Pass();  // until the other iteration has begun: would hang with one thread
    if (index == 1) gate.Open();
  });
  EXPECT_EQ(workers, (std::set<int>{0, 1}));
}

}  // namespace
}  // namespace tcgemm
