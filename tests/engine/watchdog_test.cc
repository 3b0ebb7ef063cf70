#include "server/engine/watchdog.h"

#include "gtest/gtest.h"

namespace tcgemm {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(WatchdogTest, PredictsWorkAndBytes) {
  EXPECT_EQ(PredictedTime({.flops = 2e9, .bytes = 0, .flops_per_second = 1e9}), seconds(2));
  EXPECT_EQ(PredictedTime({.flops = 0, .bytes = 4e9, .flops_per_second = 1e9}), seconds(1));
  EXPECT_EQ(PredictedTime({.flops = 1e9, .bytes = 2e9, .flops_per_second = 1e9}),
            milliseconds(1500));
}

TEST(WatchdogTest, TheLongerOfTheMinimumAndFiftyTimesThePrediction) {
  EXPECT_EQ(WatchdogLimit({.minimum = seconds(1), .predicted = milliseconds(20)}), seconds(1));
  EXPECT_EQ(WatchdogLimit({.minimum = seconds(1), .predicted = milliseconds(21)}),
            milliseconds(1050));
  EXPECT_EQ(WatchdogLimit({.minimum = milliseconds(1)}), milliseconds(1));
}

TEST(WatchdogTest, HugeWorkDoesNotOverflow) {
  EXPECT_EQ(PredictedTime({.flops = 1e300, .bytes = 1e300, .flops_per_second = 1}), hours(24));
  EXPECT_EQ(WatchdogLimit({.minimum = seconds(1), .predicted = Nanos::max()}), hours(50 * 24));
}

}  // namespace
}  // namespace tcgemm
