#include "client/duration.h"

#include <gtest/gtest.h>

namespace tcgemm::client {
namespace {

using std::chrono_literals::operator""h;
using std::chrono_literals::operator""ms;
using std::chrono_literals::operator""ns;
using std::chrono_literals::operator""s;
using std::chrono_literals::operator""us;

TEST(DurationTest, ReadsEveryUnit) {
  EXPECT_EQ(ParseDuration("7ns").value(), 7ns);
  EXPECT_EQ(ParseDuration("20us").value(), 20us);
  EXPECT_EQ(ParseDuration("500ms").value(), 500ms);
  EXPECT_EQ(ParseDuration("30s").value(), 30s);
  EXPECT_EQ(ParseDuration("1.5m").value(), 90s);
  EXPECT_EQ(ParseDuration("2h").value(), 2h);
  EXPECT_EQ(ParseDuration("0s").value(), 0s);
  EXPECT_EQ(ParseDuration("8760h").value(), 8760h);
}

TEST(DurationTest, RefusesTheRest) {
  for (const char* text : {"", "30", "s", "soon", "-1s", "+1s", "1 s", " 1s", "1s ", "1e3s", "0x1s",
                           "1.2.3s", "infs", "nans", "1S", "1d", "8761h", "."}) {
    EXPECT_EQ(ParseDuration(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
}

TEST(DurationTest, WritesTheLargestFittingUnit) {
  EXPECT_EQ(FormatDuration(30s), "30s");
  EXPECT_EQ(FormatDuration(1500us), "1.5ms");
  EXPECT_EQ(FormatDuration(90s), "1.5m");
  EXPECT_EQ(FormatDuration(0ns), "0ns");
  EXPECT_EQ(FormatDuration(999ns), "999ns");
}

}  // namespace
}  // namespace tcgemm::client
