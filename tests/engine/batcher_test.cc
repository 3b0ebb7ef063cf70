#include "server/engine/batcher.h"

#include <rapidcheck.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tcgemm {
namespace {

using std::chrono::milliseconds;
using testing::ElementsAre;
using testing::IsEmpty;

constexpr TimePoint kStart = TimePoint(std::chrono::seconds(1));
TimePoint At(int ms) { return kStart + milliseconds(ms); }

// A batcher with the small numbers that most tests want.
struct Fixture {
  explicit Fixture(int max_batch = 4, int window_ms = 10)
      : options{.max_batch = max_batch,
                .max_delay = milliseconds(window_ms),
                .max_batch_flops = 100,
                .max_batch_bytes = 1000},
        batcher(options) {}

  JobId Add(int now_ms, double flops = 1, DType key = DType::kBf16,
            std::optional<int> deadline_ms = std::nullopt, size_t bytes = 1) {
    const TimePoint deadline = deadline_ms.has_value() ? At(*deadline_ms) : kInfiniteFuture;
    batcher.Enqueue(
        {.id = ++last, .key = key, .flops = flops, .bytes = bytes, .deadline = deadline},
        At(now_ms));
    return last;
  }

  BatcherOptions options;
  Batcher batcher;
  JobId last = 0;
};

TEST(BatcherTest, EmptyTakesNothingAndSleeps) {
  Fixture f;
  const BatchTake take = f.batcher.Take(At(0));
  EXPECT_THAT(take.batch, IsEmpty());
  EXPECT_THAT(take.expired, IsEmpty());
  EXPECT_EQ(take.wake, kInfiniteFuture);
}

TEST(BatcherTest, ALoneJobWaitsForTheWindowAndNoLonger) {
  Fixture f;
  f.Add(0);
  EXPECT_THAT(f.batcher.Take(At(0)).batch, IsEmpty());
  const BatchTake early = f.batcher.Take(At(9));
  EXPECT_THAT(early.batch, IsEmpty());
  EXPECT_EQ(early.wake, At(10));
  EXPECT_THAT(f.batcher.Take(At(10)).batch, ElementsAre(1));
}

TEST(BatcherTest, WindowZeroAddsNoWait) {
  Fixture f(4, 0);
  f.Add(0);
  EXPECT_THAT(f.batcher.Take(At(0)).batch, ElementsAre(1));
}

TEST(BatcherTest, LimitsMayChange) {
  Fixture f(4, 10);
  for (int i = 0; i < 3; ++i) f.Add(0);
  EXPECT_THAT(f.batcher.Take(At(0)).batch, IsEmpty());
  f.batcher.SetLimits(2, milliseconds(0));
  EXPECT_THAT(f.batcher.Take(At(0)).batch, ElementsAre(1, 2));
  EXPECT_THAT(f.batcher.Take(At(0)).batch, ElementsAre(3));
}

TEST(BatcherTest, AFullBatchDoesNotWait) {
  Fixture f;
  for (int i = 0; i < 5; ++i) f.Add(0);
  const BatchTake take = f.batcher.Take(At(0));
  EXPECT_THAT(take.batch, ElementsAre(1, 2, 3, 4));
  EXPECT_EQ(take.wake, At(10));
  EXPECT_THAT(f.batcher.Take(At(0)).batch, IsEmpty());
}

TEST(BatcherTest, AnotherReadyBatchWakesAtOnce) {
  Fixture f;
  for (int i = 0; i < 8; ++i) f.Add(0);
  EXPECT_EQ(f.batcher.Take(At(1)).wake, At(1));
}

TEST(BatcherTest, ALargeJobNeitherWaitsNorHasCompany) {
  Fixture f;
  f.Add(0, 101);
  f.Add(0);
  EXPECT_THAT(f.batcher.Take(At(0)).batch, ElementsAre(1));
  EXPECT_THAT(f.batcher.Take(At(0)).batch, IsEmpty());
  EXPECT_THAT(f.batcher.Take(At(10)).batch, ElementsAre(2));
}

TEST(BatcherTest, ALargeJobPushesOutTheSmallOnesBeforeIt) {
  Fixture f;
  f.Add(0);
  f.Add(1, 101);
  EXPECT_THAT(f.batcher.Take(At(1)).batch, ElementsAre(1));
  EXPECT_THAT(f.batcher.Take(At(1)).batch, ElementsAre(2));
}

TEST(BatcherTest, FlopsAndBytesCapABatch) {
  Fixture f;
  f.Add(0, 60);
  f.Add(0, 40);
  f.Add(0, 1);
  EXPECT_THAT(f.batcher.Take(At(0)).batch, ElementsAre(1, 2));  // 100 is still in
  f.Add(0, 1, DType::kBf16, std::nullopt, 1000);
  EXPECT_THAT(f.batcher.Take(At(0)).batch, ElementsAre(3));
  EXPECT_THAT(f.batcher.Take(At(9)).batch, IsEmpty());  // 1000 bytes fit, so it may wait …
  f.Add(9);
  EXPECT_THAT(f.batcher.Take(At(9)).batch, ElementsAre(4));  // … until nothing more does
  f.Add(9, 1, DType::kBf16, std::nullopt, SIZE_MAX);
  EXPECT_THAT(f.batcher.Take(At(9)).batch, ElementsAre(5));
  EXPECT_THAT(f.batcher.Take(At(9)).batch, ElementsAre(6));
}

TEST(BatcherTest, KeysDoNotMixAndTheOlderHeadGoesFirst) {
  Fixture f(2);
  f.Add(0, 1, DType::kFp32);
  f.Add(1, 1, DType::kBf16);
  f.Add(2, 1, DType::kBf16);
  f.Add(3, 1, DType::kFp32);
  EXPECT_THAT(f.batcher.Take(At(3)).batch, ElementsAre(1, 4));
  EXPECT_THAT(f.batcher.Take(At(3)).batch, ElementsAre(2, 3));
}

TEST(BatcherTest, AKeyThatIsReadyDoesNotWaitForAnOlderOneThatIsNot) {
  Fixture f(2);
  f.Add(0, 1, DType::kFp32);
  f.Add(1, 1, DType::kBf16);
  f.Add(1, 1, DType::kBf16);
  EXPECT_THAT(f.batcher.Take(At(1)).batch, ElementsAre(2, 3));
  EXPECT_THAT(f.batcher.Take(At(10)).batch, ElementsAre(1));
}

TEST(BatcherTest, ExpiredJobsAreNeverTaken) {
  Fixture f;
  f.Add(0, 1, DType::kBf16, 5);
  f.Add(0);
  const BatchTake take = f.batcher.Take(At(20));
  EXPECT_THAT(take.expired, ElementsAre(1));
  EXPECT_THAT(take.batch, ElementsAre(2));
}

TEST(BatcherTest, ADeadlineEqualToNowHasPassed) {
  Fixture f;
  f.Add(0, 1, DType::kBf16, 5);
  EXPECT_EQ(f.batcher.next_deadline(), At(5));
  EXPECT_THAT(f.batcher.TakeExpired(At(4)), IsEmpty());
  EXPECT_THAT(f.batcher.TakeExpired(At(5)), ElementsAre(1));
  EXPECT_EQ(f.batcher.next_deadline(), kInfiniteFuture);
}

TEST(BatcherTest, WaitingForCompanyLeavesTimeToCompute) {
  Fixture f(4, 100);
  f.Add(0, 1, DType::kBf16, 50);
  EXPECT_EQ(f.batcher.Take(At(0)).wake, At(25));
  EXPECT_THAT(f.batcher.Take(At(25)).batch, ElementsAre(1));
  // A patient job before it does not hold it up: they go together.
  f.Add(30);
  f.Add(30, 1, DType::kBf16, 40);
  EXPECT_THAT(f.batcher.Take(At(34)).batch, IsEmpty());
  EXPECT_THAT(f.batcher.Take(At(35)).batch, ElementsAre(2, 3));
}

TEST(BatcherTest, DrainingIgnoresTheWindow) {
  Fixture f;
  f.Add(0);
  EXPECT_THAT(f.batcher.Take(At(0)).batch, IsEmpty());
  f.batcher.Drain();
  EXPECT_THAT(f.batcher.Take(At(0)).batch, ElementsAre(1));
}

TEST(BatcherTest, RemovedJobsAreGone) {
  Fixture f;
  f.Add(0, 7, DType::kBf16, 50, 3);
  f.Add(0);
  EXPECT_EQ(f.batcher.bytes(), 4u);
  EXPECT_EQ(f.batcher.flops(), 8);
  EXPECT_TRUE(f.batcher.Remove(1));
  EXPECT_FALSE(f.batcher.Remove(1));
  EXPECT_FALSE(f.batcher.Remove(99));
  EXPECT_EQ(f.batcher.jobs(), 1);
  EXPECT_EQ(f.batcher.bytes(), 1u);
  EXPECT_EQ(f.batcher.next_deadline(), kInfiniteFuture);
  EXPECT_THAT(f.batcher.Take(At(10)).batch, ElementsAre(2));
  EXPECT_FALSE(f.batcher.Remove(2));
  EXPECT_EQ(f.batcher.flops(), 0);
}

// The goal of the issue: 64 simultaneous requests in at most ⌈64/max_batch⌉ + 1 launches.
TEST(BatcherTest, SimultaneousSmallJobsShareLaunches) {
  for (const int max_batch : {1, 5, 16, 63, 64, 100}) {
    Fixture f(max_batch);
    f.options.max_batch_flops = 64e9;
    Batcher batcher(f.options);
    int launches = 0;
    for (int i = 0; i < 64; ++i) {
      batcher.Enqueue({.id = static_cast<JobId>(i + 1), .flops = 2.0 * 64 * 64 * 64}, At(i / 16));
      while (!batcher.Take(At(i / 16)).batch.empty()) ++launches;
    }
    while (!batcher.Take(At(13)).batch.empty()) ++launches;
    EXPECT_EQ(batcher.jobs(), 0);
    EXPECT_LE(launches, (64 + max_batch - 1) / max_batch + 1) << max_batch;
  }
}

// The rules of batcher.h, said again in the plainest way: one list, everything recomputed.
class Model {
 public:
  explicit Model(const BatcherOptions& options) : options_(options), batcher_(options) {}

  void Enqueue(DType key, double flops, Nanos patience) {
    const TimePoint deadline = patience == Nanos::max() ? kInfiniteFuture : now_ + patience;
    const BatchEntry entry{
        .id = ++last_, .key = key, .flops = flops, .bytes = 1, .deadline = deadline};
    const Nanos wait =
        patience == Nanos::max() ? options_.max_delay : std::min(options_.max_delay, patience / 2);
    batcher_.Enqueue(entry, now_);
    waiting_.push_back({entry, now_ + wait});
  }
  void Advance(Nanos by) { now_ += by; }
  void Drain() {
    draining_ = true;
    batcher_.Drain();
  }
  void RemoveOldest() {
    if (waiting_.empty()) return;
    Expect(batcher_.Remove(waiting_.front().entry.id), "removes a waiting job");
    waiting_.erase(waiting_.begin());
  }

  // Takes, and says what rule was broken.
  void Take() {
    const BatchTake take = batcher_.Take(now_);
    std::vector<JobId> expired;
    std::erase_if(waiting_, [&](const Waiting& w) {
      if (w.entry.deadline > now_) return false;
      expired.push_back(w.entry.id);
      return true;
    });
    Expect(std::is_permutation(expired.begin(), expired.end(), take.expired.begin(),
                               take.expired.end()),
           "drops exactly what has expired");
    std::vector<JobId> expected;
    for (const Waiting& w : waiting_) {  // oldest first: the first whose key is ready wins
      const std::vector<JobId> batch = BatchOf(w.entry.key);
      if (batch.front() != w.entry.id || ReadyAt(w.entry.key) > now_) continue;
      expected = batch;
      break;
    }
    Expect(take.batch == expected, "takes the oldest ready batch");
    std::erase_if(waiting_, [&](const Waiting& w) {
      return std::find(expected.begin(), expected.end(), w.entry.id) != expected.end();
    });
    TimePoint wake = kInfiniteFuture;
    for (const Waiting& w : waiting_) {
      wake = std::min({wake, w.entry.deadline, std::max(now_, ReadyAt(w.entry.key))});
    }
    Expect(take.wake == wake, "wakes in time");
    double flops = 0;
    for (const Waiting& w : waiting_) flops += w.entry.flops;
    Expect(batcher_.jobs() == static_cast<int64_t>(waiting_.size()), "counts jobs");
    Expect(batcher_.bytes() == waiting_.size() && batcher_.flops() == flops, "counts work");
  }

  // Nobody starves: with no new jobs, everything leaves within one take per job.
  void TakeAll() {
    Advance(options_.max_delay);
    for (size_t left = waiting_.size(); left > 0; --left) Take();
    Expect(waiting_.empty(), "empties");
  }

  const std::string& broken() const { return broken_; }

 private:
  struct Waiting {
    BatchEntry entry;
    TimePoint ready_at;
  };

  void Expect(bool holds, const char* rule) {
    if (!holds && broken_.empty()) broken_ = rule;
  }

  std::vector<JobId> BatchOf(DType key) const {
    std::vector<JobId> batch;
    double flops = 0;
    for (const Waiting& w : waiting_) {
      if (w.entry.key != key) continue;
      flops += w.entry.flops;
      const bool full = static_cast<int>(batch.size()) == options_.max_batch;
      if (!batch.empty() && (full || flops > options_.max_batch_flops)) break;
      batch.push_back(w.entry.id);
    }
    return batch;
  }

  TimePoint ReadyAt(DType key) const {
    const std::vector<JobId> batch = BatchOf(key);
    TimePoint ready_at = kInfiniteFuture;
    int of_key = 0;
    double flops = 0;
    for (const Waiting& w : waiting_) {
      if (w.entry.key != key) continue;
      ready_at = std::min(ready_at, w.ready_at);
      ++of_key;
      if (of_key <= static_cast<int>(batch.size())) flops += w.entry.flops;
    }
    const bool closed = of_key > static_cast<int>(batch.size()) ||
                        static_cast<int>(batch.size()) == options_.max_batch ||
                        flops > options_.max_batch_flops;
    return draining_ || closed || options_.max_delay == Nanos(0) ? TimePoint::min() : ready_at;
  }

  const BatcherOptions options_;
  Batcher batcher_;
  std::vector<Waiting> waiting_;
  TimePoint now_ = kStart;
  JobId last_ = 0;
  bool draining_ = false;
  std::string broken_;
};

constexpr int kSteps = 9;
void Step(Model& model, int step) {
  switch (step) {
    case 0:
      return model.Enqueue(DType::kBf16, 1, Nanos::max());
    case 1:
      return model.Enqueue(DType::kFp32, 1, Nanos::max());
    case 2:
      return model.Enqueue(DType::kBf16, 2, milliseconds(6));
    case 3:
      return model.Enqueue(DType::kBf16, 4, Nanos::max());  // large
    case 4:
      return model.Enqueue(DType::kFp32, 3, milliseconds(30));
    case 5:
      return model.Advance(milliseconds(5));
    case 6:
      return model.RemoveOldest();
    case 7:
      return model.Take();
    case 8:
      return model.Drain();
  }
}

std::string Describe(int code, int length) {
  std::string steps;
  for (int i = 0; i < length; ++i, code /= kSteps) steps += std::to_string(code % kSteps) + " ";
  return steps;
}

// Every sequence of five steps, then a take and the end.
TEST(BatcherTest, AgreesWithTheModelOnEverySmallHistory) {
  constexpr int kLength = 5;
  int histories = 1;
  for (int i = 0; i < kLength; ++i) histories *= kSteps;
  for (const int window_ms : {0, 10}) {
    for (int code = 0; code < histories; ++code) {
      Model model({.max_batch = 2, .max_delay = milliseconds(window_ms), .max_batch_flops = 3});
      for (int i = 0, rest = code; i < kLength; ++i, rest /= kSteps) Step(model, rest % kSteps);
      model.Take();
      model.TakeAll();
      ASSERT_EQ(model.broken(), "") << Describe(code, kLength) << "window " << window_ms;
    }
  }
}

TEST(BatcherTest, AgreesWithTheModelOnLongHistories) {
  EXPECT_TRUE(rc::check("batcher against model", [](const std::vector<uint8_t>& steps) {
    Model model({.max_batch = *rc::gen::inRange(1, 6),
                 .max_delay = milliseconds(*rc::gen::inRange(0, 20)),
                 .max_batch_flops = static_cast<double>(*rc::gen::inRange(1, 10))});
    for (const uint8_t step : steps) {
      // Draining ends the interesting part: rarely.
      const int which = step % kSteps;
      Step(model, which == 8 && step > 20 ? 0 : which);
    }
    model.TakeAll();
    RC_ASSERT(model.broken() == std::string());
  }));
}

}  // namespace
}  // namespace tcgemm
