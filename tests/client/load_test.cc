// The load generator without a server and without time: a fake clock, a function instead of calls.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "client/load/arrivals.h"
#include "client/load/latency_histogram.h"
#include "client/load/load_generator.h"

namespace tcgemm::client {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(LatencyHistogramTest, NothingIsZero) {
  const LatencyHistogram histogram;
  EXPECT_EQ(histogram.count(), 0);
  EXPECT_EQ(histogram.max(), Nanos(0));
  EXPECT_EQ(histogram.Percentile(99), Nanos(0));
}

TEST(LatencyHistogramTest, SmallValuesAndTheMaximumAreExact) {
  LatencyHistogram histogram;
  for (int64_t i = 1; i <= 500; ++i) histogram.Record(Nanos(i));
  EXPECT_EQ(histogram.Percentile(50), Nanos(250));
  EXPECT_EQ(histogram.Percentile(99.8), Nanos(499));
  EXPECT_EQ(histogram.Percentile(100), Nanos(500));
  EXPECT_EQ(histogram.Percentile(0.001), Nanos(1));
  histogram.Record(Nanos(123'456'789));
  EXPECT_EQ(histogram.Percentile(100), Nanos(123'456'789));
  histogram.Record(Nanos(-5));
  EXPECT_EQ(histogram.Percentile(0.001), Nanos(0));
}

TEST(LatencyHistogramTest, RanksAreNotMovedByBinaryFractions) {
  LatencyHistogram histogram;
  for (int64_t i = 1; i <= 1000; ++i) histogram.Record(Nanos(i <= 999 ? 1 : 400));
  EXPECT_EQ(histogram.Percentile(99.9), Nanos(1));
  EXPECT_EQ(histogram.Percentile(99.95), Nanos(400));
}

// Against an exact sort, over ten orders of magnitude.
TEST(LatencyHistogramTest, PercentilesAreNeverTooSmallAndLessThanTheErrorTooLarge) {
  std::mt19937_64 random(7);
  std::uniform_real_distribution<double> exponent(1, 11);
  LatencyHistogram histogram;
  std::vector<int64_t> values;
  for (int i = 0; i < 20'000; ++i) {
    values.push_back(static_cast<int64_t>(std::pow(10, exponent(random))));
    histogram.Record(Nanos(values.back()));
  }
  std::sort(values.begin(), values.end());
  for (const double percent : {0.005, 1.0, 10.0, 50.0, 90.0, 99.0, 99.9, 100.0}) {
    const auto rank = static_cast<size_t>(std::ceil(percent / 100 * 20'000 - 1e-6));
    const auto exact = static_cast<double>(values[rank - 1]);
    const auto found = static_cast<double>(histogram.Percentile(percent).count());
    EXPECT_GE(found, exact) << percent;
    EXPECT_LE(found, exact * (1 + 1.0 / 256)) << percent;
  }
}

// The buckets' borders: a value, alone, is its own percentile; the largest possible one too.
TEST(LatencyHistogramTest, EveryPowerOfTwoAndItsNeighbours) {
  for (int bit = 0; bit < 63; ++bit) {
    for (const int64_t delta : {-1, 0, 1}) {
      const Nanos value((int64_t{1} << bit) + delta);
      LatencyHistogram histogram;
      histogram.Record(value);
      histogram.Record(Nanos::max());
      const double error = static_cast<double>((histogram.Percentile(50) - value).count());
      EXPECT_GE(error, 0) << value.count();
      EXPECT_LE(error, static_cast<double>(value.count()) / 256) << value.count();
    }
  }
}

TEST(ArrivalsTest, AClosedLoopIsDueNow) {
  Arrivals arrivals({.duration = seconds(2)}, TimePoint(seconds(1)));
  EXPECT_EQ(arrivals.Next(TimePoint(seconds(1))), TimePoint(seconds(1)));
  EXPECT_EQ(arrivals.Next(TimePoint(milliseconds(2999))), TimePoint(milliseconds(2999)));
  EXPECT_EQ(arrivals.Next(TimePoint(seconds(3))), std::nullopt);
  EXPECT_EQ(arrivals.NextUnsent(TimePoint(seconds(9))), std::nullopt);
}

TEST(ArrivalsTest, ARunHasAtLeastOneCall) {
  for (const double rate : {0.0, 1000.0}) {
    Arrivals arrivals({.rate = rate, .duration = milliseconds(1)}, TimePoint(seconds(1)));
    EXPECT_TRUE(arrivals.Next(TimePoint(seconds(5))).has_value());
    EXPECT_FALSE(arrivals.Next(TimePoint(seconds(5))).has_value());
  }
}

TEST(ArrivalsTest, TheFirstLimitEndsTheRun) {
  Arrivals arrivals({.duration = hours(1), .requests = 2}, TimePoint(seconds(1)));
  EXPECT_TRUE(arrivals.Next(TimePoint(seconds(1))).has_value());
  EXPECT_TRUE(arrivals.Next(TimePoint(seconds(1))).has_value());
  EXPECT_FALSE(arrivals.Next(TimePoint(seconds(1))).has_value());
}

TEST(ArrivalsTest, AnOpenLoopKeepsItsScheduleWhateverTheTime) {
  Arrivals arrivals({.rate = 4, .duration = seconds(2)}, TimePoint(seconds(1)));
  EXPECT_EQ(arrivals.Next(TimePoint(seconds(1))), TimePoint(milliseconds(1000)));
  EXPECT_EQ(arrivals.Next(TimePoint(seconds(1))), TimePoint(milliseconds(1250)));
  // Late: still due when it was due, and the one after it too.
  EXPECT_EQ(arrivals.Next(TimePoint(milliseconds(2100))), TimePoint(milliseconds(1500)));
  EXPECT_EQ(arrivals.Next(TimePoint(milliseconds(2100))), TimePoint(milliseconds(1750)));
  // Over: the four that nobody sent waited until the end.
  EXPECT_EQ(arrivals.Next(TimePoint(seconds(3))), std::nullopt);
  for (const int waited_ms : {1000, 750, 500, 250}) {
    EXPECT_EQ(arrivals.NextUnsent(TimePoint(seconds(4))), Nanos(milliseconds(waited_ms)));
  }
  EXPECT_EQ(arrivals.NextUnsent(TimePoint(seconds(4))), std::nullopt);
}

TEST(ArrivalsTest, AScheduleDoesNotDrift) {
  Arrivals arrivals({.rate = 3000, .requests = 3'000'001}, TimePoint(seconds(0)));
  std::optional<TimePoint> last;
  while (const auto due = arrivals.Next(TimePoint(seconds(0)))) last = due;
  EXPECT_EQ(last, TimePoint(seconds(1000)));
}

TEST(ArrivalsTest, StoppedEarlyOnlyWhatWasDueIsUnsent) {
  Arrivals arrivals({.rate = 1, .requests = 100}, TimePoint(seconds(0)));
  EXPECT_TRUE(arrivals.Next(TimePoint(seconds(0))).has_value());
  arrivals.Stop();
  EXPECT_FALSE(arrivals.Next(TimePoint(seconds(3))).has_value());
  EXPECT_EQ(arrivals.NextUnsent(TimePoint(seconds(2))), Nanos(seconds(1)));
  EXPECT_EQ(arrivals.NextUnsent(TimePoint(seconds(2))), Nanos(0));
  EXPECT_EQ(arrivals.NextUnsent(TimePoint(seconds(2))), std::nullopt);
}

// One client and a server that takes 1 ms, but 1 s for call number 100.
class StallingServer {
 public:
  LoadReport Run(const ArrivalOptions& arrivals) {
    const LoadEnvironment environment{.clock = &clock_, .sleep_until = [this](TimePoint due) {
                                        clock_.Advance(due - clock_.Now());
                                      }};
    const auto call = [this](int) {
      clock_.Advance(calls_++ == 100 ? Nanos(seconds(1)) : Nanos(milliseconds(1)));
      return CallOutcome{.info = {.batched_with = 3, .queue = milliseconds(2)}};
    };
    return RunLoad({.arrivals = arrivals}, environment, call, {});
  }

 private:
  FakeClock clock_;
  int calls_ = 0;
};

double Ms(Nanos time) { return std::chrono::duration<double, std::milli>(time).count(); }

TEST(RunLoadTest, AClosedLoopHidesAStall) {
  const LoadReport report = StallingServer().Run({.requests = 1000});
  EXPECT_EQ(report.sent, 1000);
  EXPECT_EQ(report.succeeded, 1000);
  EXPECT_NEAR(Ms(report.latency.Percentile(99.9)), 1, 0.01);
  EXPECT_EQ(report.latency.max(), Nanos(seconds(1)));
  EXPECT_EQ(report.elapsed, Nanos(milliseconds(1999)));
  EXPECT_EQ(report.batched_with_sum, 3000);
  EXPECT_NEAR(Ms(report.stages[2].Percentile(50)), 2, 0.01);
  EXPECT_EQ(report.stages[0].Percentile(50), Nanos(0));
}

// The same server at 100 calls a second: a hundred calls were due during the stall; every call
// behind it waited, the last of them for about 10 ms.
TEST(RunLoadTest, AnOpenLoopCountsFromWhenACallWasDue) {
  const LoadReport report = StallingServer().Run({.rate = 100, .requests = 1000});
  EXPECT_EQ(report.sent, 1000);
  EXPECT_EQ(report.unsent, 0);
  EXPECT_NEAR(Ms(report.latency.Percentile(50)), 1, 0.01);
  EXPECT_NEAR(Ms(report.latency.Percentile(90)), 100, 12);
  EXPECT_NEAR(Ms(report.latency.Percentile(99)), 910, 12);
  EXPECT_EQ(report.latency.max(), Nanos(seconds(1)));
  EXPECT_EQ(report.max_send_delay, Nanos(milliseconds(990)));
  EXPECT_EQ(report.elapsed, Nanos(seconds(10)));
}

TEST(RunLoadTest, WhatWasNeverSentCountsTheTimeThatItWaited) {
  // Call 100 is due after 1 s and holds the only client beyond the end, at 1.5 s.
  const LoadReport report = StallingServer().Run({.rate = 100, .duration = milliseconds(1500)});
  EXPECT_EQ(report.sent, 101);
  EXPECT_EQ(report.unsent, 49);
  EXPECT_EQ(report.latency.count(), 150);
  EXPECT_NEAR(Ms(report.latency.Percentile(90)), 340, 12);
  EXPECT_EQ(report.elapsed, Nanos(milliseconds(2000)));
}

LoadReport RunWith(const LoadOptions& options, const std::function<CallOutcome(int)>& call) {
  FakeClock clock;
  const LoadEnvironment environment{.clock = &clock, .sleep_until = [](TimePoint) {}};
  return RunLoad(options, environment, call, {});
}

TEST(RunLoadTest, FailuresAreCountedByCodeAndOnlyTimeoutsHaveALatency) {
  int call = 0;
  const LoadReport report = RunWith({.arrivals = {.requests = 10}}, [&](int) -> CallOutcome {
    ++call;
    if (call <= 3) return {.status = absl::ResourceExhaustedError("full")};
    if (call <= 5) return {.status = absl::DeadlineExceededError("late")};
    return {};
  });
  EXPECT_EQ(report.sent, 10);
  EXPECT_EQ(report.succeeded, 5);
  EXPECT_EQ(report.failures,
            (std::map<absl::StatusCode, int64_t>{{absl::StatusCode::kResourceExhausted, 3},
                                                 {absl::StatusCode::kDeadlineExceeded, 2}}));
  EXPECT_TRUE(absl::IsDeadlineExceeded(report.last_failure));
  EXPECT_EQ(report.latency.count(), 7);
  EXPECT_FALSE(report.gave_up);
}

TEST(RunLoadTest, GivesUpAfterFailuresInARowAlone) {
  int call = 0;
  const LoadOptions options = {.arrivals = {.requests = 1000}, .give_up_after = 5};
  const auto fails_unless = [&](int nth) {
    call = 0;
    return RunWith(options, [&call, nth](int) -> CallOutcome {
      if (++call % nth == 0) return {};
      return {.status = absl::UnavailableError("gone")};
    });
  };
  EXPECT_EQ(fails_unless(5).sent, 1000);
  const LoadReport report = fails_unless(6);
  EXPECT_TRUE(report.gave_up);
  EXPECT_EQ(report.sent, 5);
}

TEST(RunLoadTest, ClientsShareTheRequestsAndNeverCallTwiceAtOnce) {
  constexpr int kClients = 8;
  std::vector<std::atomic<int>> under_way(kClients);
  std::atomic<int> calls{0}, twice{0};
  const LoadReport report =
      RunWith({.arrivals = {.rate = 1e6, .requests = 5000}, .clients = kClients}, [&](int client) {
        if (under_way[client].fetch_add(1) != 0) ++twice;
        ++calls;
        under_way[client].fetch_sub(1);
        return CallOutcome{};
      });
  EXPECT_EQ(report.succeeded, 5000);
  EXPECT_EQ(calls, 5000);
  EXPECT_EQ(twice, 0);
}

TEST(RunLoadTest, ProgressSeesEveryCall) {
  FakeClock clock;
  const LoadEnvironment environment{.clock = &clock, .sleep_until = [](TimePoint) {}};
  int64_t seen = 0;
  RunLoad(
      {.arrivals = {.requests = 50}, .clients = 4}, environment, [](int) { return CallOutcome{}; },
      [&](const LoadReport& so_far) { EXPECT_EQ(so_far.sent, ++seen); });
  EXPECT_EQ(seen, 50);
}

TEST(RealLoadEnvironmentTest, WakesAtItsTimeNotBefore) {
  const LoadEnvironment environment = RealLoadEnvironment();
  const TimePoint due = environment.clock->Now() + milliseconds(1);
  environment.sleep_until(due);
  EXPECT_GE(environment.clock->Now(), due);
}

}  // namespace
}  // namespace tcgemm::client
