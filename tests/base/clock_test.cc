#include "base/clock.h"

#include <gtest/gtest.h>

#include <chrono>

namespace tcgemm {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(ClockTest, RealClockIsTheSteadyClock) {
  const TimePoint before = std::chrono::steady_clock::now();
  const TimePoint now = Clock::Real()->Now();
  const TimePoint after = std::chrono::steady_clock::now();
  EXPECT_LE(before, now);
  EXPECT_LE(now, after);
}

TEST(ClockTest, RealClockIsOneObject) { EXPECT_EQ(Clock::Real(), Clock::Real()); }

TEST(ClockTest, TheTimeOfDayIsUnixTime) {
  const auto before = std::chrono::system_clock::now().time_since_epoch() / milliseconds(1);
  const int64_t now = UnixMilliseconds();
  const auto after = std::chrono::system_clock::now().time_since_epoch() / milliseconds(1);
  EXPECT_LE(before, now);
  EXPECT_LE(now, after);
}

TEST(FakeClockTest, StartsAtOneSecondAndMovesOnlyWhenTold) {
  FakeClock clock;
  EXPECT_EQ(clock.Now(), TimePoint(seconds(1)));
  EXPECT_EQ(clock.Now(), TimePoint(seconds(1)));
  clock.Advance(milliseconds(250));
  EXPECT_EQ(clock.Now(), TimePoint(milliseconds(1250)));
  clock.Advance(Nanos(1));
  EXPECT_EQ(clock.Now() - TimePoint(milliseconds(1250)), Nanos(1));
}

TEST(FakeClockTest, NeverReachesTheInfiniteFuture) {
  FakeClock clock;
  clock.Advance(std::chrono::hours(24 * 365 * 100));
  EXPECT_LT(clock.Now(), kInfiniteFuture);
}

}  // namespace
}  // namespace tcgemm
