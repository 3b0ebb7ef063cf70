#include "client/range.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <thread>
#include <vector>

namespace tcgemm::client {
namespace {

using Ranges = std::vector<Range>;

TEST(RangeTest, MissingIsWhatIsNotPresent) {
  EXPECT_EQ(MissingRanges({}, 10), Ranges({{0, 10}}));
  EXPECT_EQ(MissingRanges({{0, 10}}, 10), Ranges());
  EXPECT_EQ(MissingRanges({{2, 4}, {7, 8}}, 10), Ranges({{0, 2}, {4, 7}, {8, 10}}));
  EXPECT_EQ(MissingRanges({}, 0), Ranges());
}

// What a server says may be anything.
TEST(RangeTest, MissingIsRightWhateverComes) {
  EXPECT_TRUE(rc::check("against one bit a byte", [] {
    const size_t total = *rc::gen::inRange<size_t>(0, 40);
    std::vector<bool> there(total);
    Ranges present;
    for (int i = *rc::gen::inRange(0, 6); i > 0; --i) {
      const Range range{*rc::gen::inRange<size_t>(0, 50), *rc::gen::inRange<size_t>(0, 60)};
      present.push_back(range);
      for (size_t at = range.begin; at < std::min(range.end, total); ++at) there[at] = true;
    }
    std::vector<bool> left(total, true);
    size_t last = 0;
    for (const Range& range : MissingRanges(present, total)) {
      RC_ASSERT(range.begin < range.end);
      RC_ASSERT(range.begin >= last);
      last = range.end;
      for (size_t at = range.begin; at < range.end; ++at) {
        RC_ASSERT(!there[at]);
        left[at] = false;
      }
    }
    RC_ASSERT(left == there);
  }));
}

TEST(RangeTest, CutsEvenlyAndLeavesNothingOut) {
  EXPECT_EQ(CutEvenly(10, 2, 1), Ranges({{0, 5}, {5, 10}}));
  EXPECT_EQ(CutEvenly(10, 2, 4), Ranges({{0, 4}, {4, 10}}));
  EXPECT_EQ(CutEvenly(3, 8, 1), Ranges({{0, 1}, {1, 2}, {2, 3}})) << "more lanes than bytes";
  EXPECT_EQ(CutEvenly(3, 8, 100), Ranges({{0, 3}}));
  EXPECT_EQ(CutEvenly(7, 1, 2), Ranges({{0, 7}}));
  EXPECT_EQ(CutEvenly(0, 4, 2), Ranges());
  EXPECT_TRUE(rc::check("whole, in order, none empty", [] {
    const size_t total = *rc::gen::inRange<size_t>(1, 1000);
    const int parts = *rc::gen::inRange(1, 9);
    const size_t unit = *rc::gen::inRange<size_t>(1, 70);
    size_t at = 0;
    const Ranges ranges = CutEvenly(total, parts, unit);
    RC_ASSERT(ranges.size() <= static_cast<size_t>(parts));
    for (const Range& range : ranges) {
      RC_ASSERT(range.begin == at);
      RC_ASSERT(range.begin < range.end);
      RC_ASSERT(range.begin % unit == 0u);
      at = range.end;
    }
    RC_ASSERT(at == total);
  }));
}

TEST(RangeQueueTest, GivesOutPiecesInOrder) {
  RangeQueue queue({{0, 5}, {7, 7}, {9, 11}}, 2);
  EXPECT_FALSE(queue.empty());
  for (const Range& expected : Ranges({{0, 2}, {2, 4}, {4, 5}, {9, 11}})) {
    EXPECT_EQ(queue.Next(), expected);
  }
  EXPECT_TRUE(queue.empty());
  EXPECT_EQ(queue.Next(), std::nullopt);
  EXPECT_TRUE(RangeQueue({}, 1).empty());
  EXPECT_TRUE(RangeQueue({{3, 3}}, 1).empty());
}

TEST(RangeQueueTest, SharesThemOut) {
  RangeQueue queue({{0, 10'000}}, 7);
  std::vector<Ranges> taken(4);
  std::vector<std::thread> threads;
  for (Ranges& mine : taken) {
    threads.emplace_back([&queue, &mine] {
      while (const std::optional<Range> range = queue.Next()) mine.push_back(*range);
    });
  }
  for (std::thread& thread : threads) thread.join();
  Ranges all;
  for (const Ranges& some : taken) all.insert(all.end(), some.begin(), some.end());
  EXPECT_TRUE(MissingRanges(all, 10'000).empty());
  EXPECT_EQ(all.size(), 10'000u / 7 + 1);
}

TEST(RangeTest, DenseBytesLeaveGapsOut) {
  EXPECT_EQ(DenseBytes({.rows = 3, .cols = 5, .ld = 9}), 30u);
  EXPECT_EQ(DenseBytes({.rows = 3, .cols = 5, .ld = 5, .dtype = DType::kFp32}), 60u);
}

}  // namespace
}  // namespace tcgemm::client
