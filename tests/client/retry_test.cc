#include "client/retry.h"

#include <gtest/gtest.h>

#include <vector>

namespace tcgemm::client {
namespace {

using std::chrono_literals::operator""ms;
using std::chrono_literals::operator""ns;
using std::chrono_literals::operator""s;

// Attempts take `cost`, waits take as long as they say, and no test does.
class RetryTest : public testing::Test {
 protected:
  RetryOutcome Run(Nanos timeout, const std::vector<Attempt>& script) {
    const RetryEnvironment environment{.clock = &clock_,
                                       .sleep =
                                           [this](Nanos wait) {
                                             waits_.push_back(wait);
                                             clock_.Advance(wait);
                                           },
                                       .seed = seed_};
    return CallWithRetries(policy_, environment, timeout, [&](Nanos left) {
      lefts_.push_back(left);
      clock_.Advance(cost_);
      // The last one repeats.
      return script[std::min(lefts_.size(), script.size()) - 1];
    });
  }

  FakeClock clock_;
  RetryPolicy policy_;
  uint64_t seed_ = 1;
  Nanos cost_ = 1ms;
  std::vector<Nanos> waits_;
  std::vector<Nanos> lefts_;
};

Attempt Unavailable() { return {.status = absl::UnavailableError("draining")}; }
Attempt Refused() { return {.status = absl::UnavailableError("refused"), .unreachable = true}; }
Attempt Full(Nanos pushback) {
  return {.status = absl::ResourceExhaustedError("full"), .pushback = pushback};
}

TEST_F(RetryTest, SuccessIsNotRepeated) {
  const RetryOutcome outcome = Run(30s, {Attempt{}});
  EXPECT_TRUE(outcome.status.ok());
  EXPECT_EQ(outcome.attempts, 1);
  EXPECT_EQ(lefts_, std::vector<Nanos>{30s});
}

TEST_F(RetryTest, UnavailableIsTriedAgainWithGrowingWaits) {
  const RetryOutcome outcome = Run(30s, {Unavailable(), Unavailable(), Unavailable(), Attempt{}});
  EXPECT_TRUE(outcome.status.ok());
  EXPECT_EQ(outcome.attempts, 4);
  ASSERT_EQ(waits_.size(), 3u);
  for (size_t i = 0; i < waits_.size(); ++i) {
    const Nanos ceiling = policy_.initial_backoff * (1 << i);
    EXPECT_GE(waits_[i], ceiling / 2);
    EXPECT_LE(waits_[i], ceiling);
  }
  // Each attempt gets what is left.
  EXPECT_EQ(lefts_[1], 30s - cost_ - waits_[0]);
}

TEST_F(RetryTest, WaitsAreCapped) {
  Run(60s, {Unavailable()});
  for (const Nanos wait : waits_) EXPECT_LE(wait, policy_.max_backoff);
  EXPECT_GE(waits_.back(), policy_.max_backoff / 2);
}

TEST_F(RetryTest, SeedsDiffer) {
  Run(1s, {Unavailable()});
  const Nanos first = waits_.front();
  waits_.clear();
  seed_ = 2;
  Run(1s, {Unavailable()});
  EXPECT_NE(waits_.front(), first);
}

TEST_F(RetryTest, OtherCodesEndAtOnce) {
  for (int code = 1; code <= 16; ++code) {
    if (code == static_cast<int>(absl::StatusCode::kUnavailable)) continue;
    waits_.clear();
    lefts_.clear();
    const absl::Status status(static_cast<absl::StatusCode>(code), "no");
    EXPECT_EQ(Run(30s, {Attempt{.status = status}}).attempts, 1) << status;
  }
}

TEST_F(RetryTest, TheLastFailureIsReturnedBeforeTheDeadline) {
  const TimePoint start = clock_.Now();
  const RetryOutcome outcome = Run(1s, {Unavailable()});
  EXPECT_TRUE(absl::IsUnavailable(outcome.status));
  EXPECT_GT(outcome.attempts, 2);
  EXPECT_LT(clock_.Now() - start, 1s);
}

TEST_F(RetryTest, PushbackIsRespected) {
  const RetryOutcome outcome = Run(30s, {Full(700ms), Attempt{}});
  EXPECT_TRUE(outcome.status.ok());
  ASSERT_EQ(waits_.size(), 1u);
  EXPECT_GE(waits_[0], 700ms);
  EXPECT_LE(waits_[0], 770ms);
}

TEST_F(RetryTest, NoPushbackNoRetryOfAFullServer) {
  EXPECT_EQ(Run(30s, {Attempt{.status = absl::ResourceExhaustedError("too large")}}).attempts, 1);
}

TEST_F(RetryTest, NegativePushbackForbids) {
  EXPECT_EQ(Run(30s, {Full(-1ns)}).attempts, 1);
  lefts_.clear();
  Attempt unavailable = Unavailable();
  unavailable.pushback = Nanos(-1);
  EXPECT_EQ(Run(30s, {unavailable}).attempts, 1);
}

TEST_F(RetryTest, APushbackBeyondTheDeadlineEndsTheCall) {
  const RetryOutcome outcome = Run(500ms, {Full(600ms)});
  EXPECT_EQ(outcome.attempts, 1);
  EXPECT_TRUE(absl::IsResourceExhausted(outcome.status));
}

TEST_F(RetryTest, AnUnreachableServerIsGivenUpSoon) {
  const TimePoint start = clock_.Now();
  const RetryOutcome outcome = Run(30s, {Refused()});
  EXPECT_GE(outcome.attempts, 3);
  EXPECT_LE(clock_.Now() - start, policy_.connect_patience + 10 * cost_);
}

TEST_F(RetryTest, PatienceCountsFromTheFirstRefusalInARow) {
  cost_ = 800ms;
  // Reached in between: the refusals before do not count.
  const RetryOutcome outcome =
      Run(30s, {Refused(), Refused(), Unavailable(), Refused(), Refused(), Attempt{}});
  EXPECT_TRUE(outcome.status.ok());
  EXPECT_EQ(outcome.attempts, 6);
}

}  // namespace
}  // namespace tcgemm::client
