#include "base/mutex.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>
#include <vector>

#include "base/clock.h"

namespace tcgemm {
namespace {

struct Counter {
  Mutex mutex;
  CondVar changed;
  int value ABSL_GUARDED_BY(mutex) = 0;
};

// From a thread of its own: std::mutex may not be tried by the thread that holds it.
bool TryLockElsewhere(Mutex* mutex) {
  bool locked = false;
  std::thread other([&] {
    if (!mutex->TryLock()) return;
    locked = true;
    mutex->Unlock();
  });
  other.join();
  return locked;
}

TEST(MutexTest, LockExcludesAndUnlockReleases) {
  Mutex mutex;
  mutex.Lock();
  EXPECT_FALSE(TryLockElsewhere(&mutex));
  mutex.Unlock();
  EXPECT_TRUE(TryLockElsewhere(&mutex));
}

TEST(MutexTest, MutexLockHoldsForItsScope) {
  Mutex mutex;
  {
    MutexLock lock(&mutex);
    EXPECT_FALSE(TryLockElsewhere(&mutex));
  }
  EXPECT_TRUE(TryLockElsewhere(&mutex));
}

TEST(MutexTest, NoIncrementIsLost) {
  constexpr int kThreads = 4;
  constexpr int kIncrements = 10'000;
  Counter counter;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&counter] {
      for (int i = 0; i < kIncrements; ++i) {
        MutexLock lock(&counter.mutex);
        ++counter.value;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  MutexLock lock(&counter.mutex);
  EXPECT_EQ(counter.value, kThreads * kIncrements);
}

TEST(CondVarTest, TwoThreadsTakeTurns) {
  constexpr int kTurns = 1000;
  Counter counter;
  std::thread odd([&counter] {
    MutexLock lock(&counter.mutex);
    for (int turn = 1; turn < kTurns; turn += 2) {
      while (counter.value != turn) counter.changed.Wait(&counter.mutex);
      ++counter.value;
      counter.changed.NotifyOne();
    }
  });
  {
    MutexLock lock(&counter.mutex);
    for (int turn = 0; turn < kTurns; turn += 2) {
      while (counter.value != turn) counter.changed.Wait(&counter.mutex);
      ++counter.value;
      counter.changed.NotifyOne();
    }
  }
  odd.join();
  MutexLock lock(&counter.mutex);
  EXPECT_EQ(counter.value, kTurns);
}

TEST(CondVarTest, NotifyAllWakesEveryWaiter) {
  Counter counter;
  std::vector<std::thread> waiters;
  for (int t = 0; t < 3; ++t) {
    waiters.emplace_back([&counter] {
      MutexLock lock(&counter.mutex);
      while (counter.value == 0) counter.changed.Wait(&counter.mutex);
    });
  }
  {
    MutexLock lock(&counter.mutex);
    counter.value = 1;
  }
  counter.changed.NotifyAll();
  for (std::thread& waiter : waiters) waiter.join();
}

TEST(CondVarTest, ADeadlineInThePastTimesOutHoldingTheMutex) {
  Mutex mutex;
  CondVar cv;
  const TimePoint now = Clock::Real()->Now();
  for (const TimePoint deadline : {TimePoint::min(), TimePoint(), now - std::chrono::seconds(1)}) {
    MutexLock lock(&mutex);
    EXPECT_FALSE(cv.WaitUntil(&mutex, deadline));
    EXPECT_FALSE(TryLockElsewhere(&mutex));
  }
}

TEST(CondVarTest, AnInfiniteDeadlineWaitsForTheNotification) {
  for (const TimePoint deadline :
       {kInfiniteFuture, Clock::Real()->Now() + std::chrono::hours(24 * 366)}) {
    Counter counter;
    std::thread notifier([&counter] {
      MutexLock lock(&counter.mutex);
      counter.value = 1;
      counter.changed.NotifyOne();
    });
    {
      MutexLock lock(&counter.mutex);
      while (counter.value == 0) {
        EXPECT_TRUE(counter.changed.WaitUntil(&counter.mutex, deadline));
      }
    }
    notifier.join();
  }
}

TEST(CondVarTest, ANearDeadlineIsMetByTheNotification) {
  Counter counter;
  std::thread notifier([&counter] {
    MutexLock lock(&counter.mutex);
    counter.value = 1;
    counter.changed.NotifyOne();
  });
  {
    const TimePoint deadline = Clock::Real()->Now() + std::chrono::minutes(5);
    MutexLock lock(&counter.mutex);
    while (counter.value == 0) {
      ASSERT_TRUE(counter.changed.WaitUntil(&counter.mutex, deadline));
    }
  }
  notifier.join();
}

}  // namespace
}  // namespace tcgemm
