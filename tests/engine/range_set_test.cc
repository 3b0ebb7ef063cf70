#include "server/engine/range_set.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace tcgemm {
namespace {

using Ranges = std::vector<ByteRange>;

TEST(RangeSetTest, RangesThatTouchBecomeOne) {
  RangeSet set;
  set.Add({10, 20});
  set.Add({30, 40});
  EXPECT_EQ(set.ranges(), (Ranges{{10, 20}, {30, 40}}));
  set.Add({20, 30});
  EXPECT_EQ(set.ranges(), (Ranges{{10, 40}}));
  set.Add({5, 5});
  EXPECT_EQ(set.count(), 1u);
}

TEST(RangeSetTest, TellsWhatIsMissing) {
  RangeSet set;
  EXPECT_EQ(set.MissingFrom({0, 5}), (Ranges{{0, 5}}));
  set.Add({10, 20});
  set.Add({30, 40});
  EXPECT_EQ(set.MissingFrom({0, 50}), (Ranges{{0, 10}, {20, 30}, {40, 50}}));
  EXPECT_EQ(set.MissingFrom({12, 18}), Ranges{});
  EXPECT_EQ(set.MissingFrom({15, 35}), (Ranges{{20, 30}}));
  EXPECT_TRUE(set.Contains({10, 20}));
  EXPECT_FALSE(set.Contains({10, 21}));
}

// Against one flag per byte.
TEST(RangeSetTest, AgreesWithOneFlagPerByte) {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    RangeSet set;
    std::vector<bool> flags(40, false);
    for (int step = 0; step < 12; ++step) {
      const size_t begin = random() % 40;
      const size_t end = begin + random() % (41 - begin);
      const bool add = random() % 3 != 0;
      add ? set.Add({begin, end}) : set.Remove({begin, end});
      std::fill(flags.begin() + begin, flags.begin() + end, add);
      std::vector<bool> seen(40, false);
      for (const ByteRange& range : set.ranges()) {
        std::fill(seen.begin() + range.begin, seen.begin() + range.end, true);
      }
      ASSERT_EQ(seen, flags);
      ASSERT_EQ(set.Contains({begin, end}), set.MissingFrom({begin, end}).empty());
      std::vector<bool> missing(40, false);
      for (const ByteRange& range : set.MissingFrom({begin, end})) {
        std::fill(missing.begin() + range.begin, missing.begin() + range.end, true);
      }
      for (size_t i = 0; i < 40; ++i) {
        ASSERT_EQ(missing[i], i >= begin && i < end && !flags[i]) << i;
      }
    }
  }
}

}  // namespace
}  // namespace tcgemm
