#include "server/main/logging.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

namespace tcgemm {
namespace {

using ::testing::MatchesRegex;

std::string Logged(const std::string& level, const std::string& format,
                   const std::function<void()>& log) {
  ::testing::internal::CaptureStderr();
  StartLogging(level, format);
  log();
  return ::testing::internal::GetCapturedStderr();
}

TEST(LoggingTest, TextIsTimeLevelMessage) {
  EXPECT_THAT(Logged("info", "text", [] { Log(LogLevel::kWarning, "100 % {} of %v"); }),
              MatchesRegex("[0-9]+-[0-9]+-[0-9]+T[0-9:.]+ warning 100 % \\{\\} of %v\n"));
}

TEST(LoggingTest, TheLevelHidesWhatIsLessSevere) {
  const auto all = [] {
    for (const LogLevel level :
         {LogLevel::kDebug, LogLevel::kInfo, LogLevel::kWarning, LogLevel::kError}) {
      Log(level, "x");
    }
  };
  const auto lines = [&](const std::string& level) {
    const std::string text = Logged(level, "text", all);
    return std::count(text.begin(), text.end(), '\n');
  };
  EXPECT_EQ(lines("debug"), 4);
  EXPECT_EQ(lines("info"), 3);
  EXPECT_EQ(lines("warning"), 2);
  EXPECT_EQ(lines("error"), 1);
}

TEST(LoggingTest, TheLevelMayChange) {
  const std::string text = Logged("error", "text", [] {
    Log(LogLevel::kInfo, "before");
    SetLogLevel("info");
    Log(LogLevel::kInfo, "after");
  });
  EXPECT_THAT(text, MatchesRegex("[^\n]* info after\n"));
}

TEST(LoggingTest, JsonIsOneObjectALineWhateverTheMessageHolds) {
  for (const std::string& message :
       {std::string("plain"), std::string("a \"quote\", a \\, a\nnew line"),
        std::string("{\"level\":\"error\"}"), std::string("nul \0 byte", 10), std::string("%v {}"),
        std::string("é")}) {
    const std::string text = Logged("info", "json", [&] { Log(LogLevel::kError, message); });
    ASSERT_EQ(std::count(text.begin(), text.end(), '\n'), 1) << text;
    const auto line = nlohmann::json::parse(text);
    EXPECT_EQ(line.size(), 3u);
    EXPECT_EQ(line.at("level"), "error");
    EXPECT_EQ(line.at("message"), message);
    EXPECT_FALSE(line.at("time").get<std::string>().empty());
  }
}

TEST(LoggingTest, JsonReplacesWhatIsNoUtf8) {
  const std::string text = Logged("info", "json", [] { Log(LogLevel::kInfo, "\xff\xfe"); });
  EXPECT_FALSE(nlohmann::json::parse(text).at("message").get<std::string>().empty());
}

}  // namespace
}  // namespace tcgemm
