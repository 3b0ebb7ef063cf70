#include "server/main/units.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <limits>
#include <string>

namespace tcgemm {
namespace {

TEST(ParseDurationTest, Units) {
  EXPECT_EQ(ParseDuration("7ns").value(), Nanos(7));
  EXPECT_EQ(ParseDuration("250us").value(), std::chrono::microseconds(250));
  EXPECT_EQ(ParseDuration("250ms").value(), std::chrono::milliseconds(250));
  EXPECT_EQ(ParseDuration("30s").value(), std::chrono::seconds(30));
  EXPECT_EQ(ParseDuration("5m").value(), std::chrono::minutes(5));
  EXPECT_EQ(ParseDuration("2h").value(), std::chrono::hours(2));
  for (const char* bad :
       {"", "5", "s", "-1s", "1.5s", "1 s", "5x", "99999999999h", "18446744073709551616ns"}) {
    EXPECT_FALSE(ParseDuration(bad).ok()) << bad;
  }
}

TEST(ParseBytesTest, Units) {
  EXPECT_EQ(ParseBytes("4096").value(), 4096u);
  EXPECT_EQ(ParseBytes("4B").value(), 4u);
  EXPECT_EQ(ParseBytes("1KiB").value(), 1024u);
  EXPECT_EQ(ParseBytes("3MiB").value(), 3u << 20);
  EXPECT_EQ(ParseBytes("2GiB").value(), uint64_t{2} << 30);
  EXPECT_EQ(ParseBytes("1TiB").value(), uint64_t{1} << 40);
  EXPECT_EQ(ParseBytes("1KB").value(), 1000u);
  EXPECT_EQ(ParseBytes("1GB").value(), 1000000000u);
  for (const char* bad :
       {"", "GiB", "-1", "1.5GiB", "1 GiB", "5x", "8388608TiB", "18446744073709551616"}) {
    EXPECT_FALSE(ParseBytes(bad).ok()) << bad;
  }
}

TEST(ParseBytesTest, ExactOrRefusedNeverWrapped) {
  EXPECT_TRUE(rc::check("number with unit", [](uint64_t number) {
    for (const auto& [unit, factor] : std::map<std::string, uint64_t>{
             {"", 1}, {"KiB", 1024}, {"MB", 1'000'000}, {"TiB", uint64_t{1} << 40}}) {
      const auto parsed = ParseBytes(std::to_string(number) + unit);
      const bool fits =
          number <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max()) / factor;
      RC_ASSERT(parsed.ok() == fits);
      if (fits) RC_ASSERT(*parsed == number * factor);
    }
  }));
}

TEST(ParseBytesTest, GarbageIsRefused) {
  EXPECT_TRUE(rc::check("any text", [](const std::string& text) {
    const bool digit_first = !text.empty() && text[0] >= '0' && text[0] <= '9';
    if (!digit_first) {
      RC_ASSERT(!ParseBytes(text).ok());
      RC_ASSERT(!ParseDuration(text).ok());
    }
  }));
}

}  // namespace
}  // namespace tcgemm
