// What can be said of the page without a browser; tests/e2e/status_test.py has one.
#include "server/http/status_page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>
#include <set>
#include <string>

namespace tcgemm {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

std::string Html() { return std::string(StatusHtml()); }
std::string Js() { return std::string(StatusJs()); }

TEST(StatusPageTest, TheFilesAreWhole) {
  EXPECT_THAT(Html(), StartsWith("<!doctype html>\n<html lang=\"en\">"));
  EXPECT_THAT(Html(), EndsWith("</html>\n"));
  EXPECT_THAT(std::string(StatusCss()), StartsWith(":root {"));
  EXPECT_THAT(std::string(StatusCss()), EndsWith("}\n"));
  EXPECT_THAT(Js(), EndsWith("watch();\n"));
}

// Its Content-Security-Policy would stop them: better that they are not there.
TEST(StatusPageTest, NoScriptOrStyleInThePageAndNothingFromElsewhere) {
  EXPECT_FALSE(std::regex_search(Html(), std::regex(R"(<script(?![^>]*src=)|<style|\sstyle=)")));
  EXPECT_FALSE(std::regex_search(Html(), std::regex(R"(\son[a-z]+\s*=)")));
  for (const std::string& text : {Html(), Js(), std::string(StatusCss())}) {
    EXPECT_FALSE(std::regex_search(text, std::regex(R"((src|href)="(https?:)?//|@import|url\()")));
  }
}

TEST(StatusPageTest, TextOfTheServerIsNeverMarkup) {
  for (const char* way : {"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(",
                          "new Function", "srcdoc"}) {
    EXPECT_THAT(Js(), Not(HasSubstr(way)));
  }
}

// What the script puts a number into is on the page, and everything there gets one.
TEST(StatusPageTest, ScriptAndPageHaveTheSameNumbers) {
  const auto found = [](const std::string& text, const std::string& pattern) {
    const std::regex regex(pattern);
    std::set<std::string> ids;
    for (std::sregex_iterator it(text.begin(), text.end(), regex), end; it != end; ++it) {
      ids.insert((*it)[1]);
    }
    return ids;
  };
  EXPECT_EQ(found(Js(), R"re(\bput\("([a-z0-9-]+)")re"),
            found(Html(), R"re(<data id="([a-z0-9-]+)")re"));
}

TEST(StatusPageTest, ForPeopleWhoCannotSeeItOrHaveNoScript) {
  for (const char* part : {"<title>", "name=\"viewport\"", "role=\"status\"", "role=\"alert\"",
                           "<noscript>", "color-scheme"}) {
    EXPECT_THAT(Html(), HasSubstr(part));
  }
  EXPECT_THAT(std::string(StatusCss()), HasSubstr("@media (prefers-color-scheme: dark)"));
}

}  // namespace
}  // namespace tcgemm
