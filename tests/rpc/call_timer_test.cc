#include "server/rpc/call_timer.h"

#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <vector>

#include "base/mutex.h"

namespace tcgemm {
namespace {

// Remembers in which order the timer called.
class Log {
 public:
  void Add(int name) {
    MutexLock lock(&mutex_);
    names_.push_back(name);
    cv_.NotifyAll();
  }
  std::vector<int> WaitFor(size_t count) {
    MutexLock lock(&mutex_);
    while (names_.size() < count) cv_.Wait(&mutex_);
    return names_;
  }

 private:
  Mutex mutex_;
  CondVar cv_;
  std::vector<int> names_ ABSL_GUARDED_BY(mutex_);
};

class Entry final : public CallTimer::Target {
 public:
  Entry(Log* log, int name) : log_(log), name_(name) {}
  void OnTime() override { log_->Add(name_); }

 private:
  Log* const log_;
  const int name_;
};

TEST(CallTimerTest, FiresInOrderOfTimeNotOfArrival) {
  Log log;
  const auto first = std::make_shared<Entry>(&log, 1);
  const auto second = std::make_shared<Entry>(&log, 2);
  const auto third = std::make_shared<Entry>(&log, 3);
  CallTimer timer;
  const TimePoint now = Clock::Real()->Now();
  timer.Add(now + std::chrono::milliseconds(30), third);
  timer.Add(now + std::chrono::milliseconds(20), second);
  timer.Add(now - std::chrono::hours(1), first);
  EXPECT_EQ(log.WaitFor(3), std::vector<int>({1, 2, 3}));
  EXPECT_GE(Clock::Real()->Now(), now + std::chrono::milliseconds(30));
}

// A call sets a timer some seconds away and ends within a millisecond.
TEST(CallTimerTest, WhatComesLaterAndWhatGoesWakesNobody) {
  Log log;
  const auto entry = std::make_shared<Entry>(&log, 1);
  CallTimer timer;
  const TimePoint now = Clock::Real()->Now();
  for (int i = 0; i < 1000; ++i) {
    timer.Remove(timer.Add(now + std::chrono::hours(1) + std::chrono::microseconds(i), entry));
    std::this_thread::yield();
  }
  EXPECT_LE(timer.wakes(), 2) << "once for the first of them; once for nothing, maybe";
}

TEST(CallTimerTest, RemovedAndExpiredEntriesStaySilent) {
  Log log;
  CallTimer timer;
  const TimePoint soon = Clock::Real()->Now() + std::chrono::milliseconds(20);
  const auto removed = std::make_shared<Entry>(&log, 1);
  auto expired = std::make_shared<Entry>(&log, 2);
  const auto last = std::make_shared<Entry>(&log, 3);
  const CallTimer::Ticket ticket = timer.Add(soon, removed);
  timer.Add(soon, expired);
  timer.Remove(ticket);
  timer.Remove(ticket);
  timer.Remove({});
  expired.reset();
  timer.Add(soon + std::chrono::milliseconds(1), last);
  EXPECT_EQ(log.WaitFor(1), std::vector<int>({3}));
}

TEST(CallTimerTest, InfiniteTimesMakeNoEntry) {
  Log log;
  CallTimer timer;
  EXPECT_FALSE(timer.Add(kInfiniteFuture, std::make_shared<Entry>(&log, 1)));
}

TEST(CallTimerTest, EndsWithEntriesLeft) {
  Log log;
  const auto entry = std::make_shared<Entry>(&log, 1);
  CallTimer timer;
  EXPECT_TRUE(timer.Add(Clock::Real()->Now() + std::chrono::hours(1), entry));
}

}  // namespace
}  // namespace tcgemm
