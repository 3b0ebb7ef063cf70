#include "server/http/process_stats.h"

#include <gtest/gtest.h>

#include <ctime>

namespace tcgemm {
namespace {

TEST(ParseProcStatTest, TakesFieldsAfterTheCommand) {
  // The command may hold spaces and parentheses.
  const char* const text =
      "42 (a (strange) name) S 1 2 3 4 5 6 7 8 9 10 110 220 13 14 15 16 17 18 5000 20 300 22";
  const auto stat = ParseProcStat(text);
  ASSERT_TRUE(stat.has_value());
  EXPECT_EQ(stat->cpu_ticks, 330);
  EXPECT_EQ(stat->start_ticks, 5000);
  EXPECT_EQ(stat->resident_pages, 300);
}

TEST(ParseProcStatTest, RefusesOtherText) {
  EXPECT_FALSE(ParseProcStat("").has_value());
  EXPECT_FALSE(ParseProcStat("42 (name) S 1 2").has_value());
}

TEST(ReadProcessStatsTest, SeesThisProcess) {
  const ProcessStats stats = ReadProcessStats();
  EXPECT_GT(stats.resident_bytes, 1e6);
  EXPECT_GE(stats.open_fds, 3);
  EXPECT_GT(stats.max_fds, stats.open_fds);
  EXPECT_GE(stats.cpu_seconds, 0);
  const auto now = static_cast<double>(std::time(nullptr));
  EXPECT_LE(stats.start_time_seconds, now + 2);
  EXPECT_GT(stats.start_time_seconds, now - 3600);
}

}  // namespace
}  // namespace tcgemm
