#include "server/main/config_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>
#include <string>

namespace tcgemm {
namespace {

using ::testing::HasSubstr;

std::vector<CLI::ConfigItem> Read(const std::string& text) {
  std::optional<size_t> keys;
  std::istringstream stream(text);
  std::vector<CLI::ConfigItem> items =
      ConfigFile({.lists = {"listen"}, .booleans = {"insecure"}}, &keys).from_config(stream);
  EXPECT_EQ(keys, items.size());
  return items;
}

TEST(ConfigFileTest, ReadsKeysListsAndComments) {
  const auto items = Read(
      "# listen = 1\n; listen = 2\nlisten = [\"a=b\",\n  \"c=d\"\n]\nmax-batch = 3\n\nx= \"y\"\n");
  ASSERT_EQ(items.size(), 3u);
  EXPECT_EQ(items[0].name, "listen");
  EXPECT_THAT(items[0].inputs, ::testing::ElementsAre("a=b", "c=d"));
  EXPECT_EQ(items[1].inputs, std::vector<std::string>{"3"});
  EXPECT_TRUE(Read("").empty());
}

std::string ErrorOf(const std::string& text) {
  try {
    Read(text);
  } catch (const CLI::ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(ConfigFileTest, AKeySetTwiceIsAnErrorThatNamesBothLines) {
  EXPECT_THAT(ErrorOf("max-batch = 3\nlog-level = \"info\"\n  max-batch=4\n"),
              HasSubstr("'max-batch' is set twice, in lines 1 and 3"));
  EXPECT_THAT(ErrorOf("max-batch = 3\n--max-batch=4\n"), HasSubstr("'max-batch' is set twice"));
}

TEST(ConfigFileTest, WhatWouldBeReadInAnotherWayIsRefused) {
  for (const char* text :
       {"[default]\nmax-batch = 4\n", "[]\n", "\"max-batch\" = 4\n", "'max-batch'=4\n"}) {
    EXPECT_THAT(ErrorOf(text), HasSubstr("line 1: there are no sections here")) << text;
  }
  std::string deep = "[";
  for (int i = 0; i < 12'000; ++i) deep += "a.";
  EXPECT_THAT(ErrorOf(deep + "]\nmax-batch = 3\n"), HasSubstr("no sections"));
  EXPECT_THAT(ErrorOf(std::string((1 << 20) + 1, '\n')), HasSubstr("more than 1048576 bytes"));
  EXPECT_EQ(ErrorOf(std::string(1 << 20, '\n')), "");
}

TEST(ConfigFileTest, AListForOneValueIsRefusedByName) {
  EXPECT_THAT(ErrorOf("x = 1\nmax-batch = [4, 8]\n"),
              HasSubstr("line 2: 'max-batch' is [4, 8], must be one value"));
  EXPECT_THAT(ErrorOf("max-batch = [\n4]\n"), HasSubstr("line 1: 'max-batch' is [, must be one"));
  EXPECT_THAT(ErrorOf("max-batch = 4, 8\n"), HasSubstr("'max-batch' is 4, 8, must be one value"));
  EXPECT_THAT(ErrorOf("max-batch = 4 8\n"),
              HasSubstr("line 1: 'max-batch' is 4, 8, must be one value"));
  EXPECT_EQ(ErrorOf("tls-cert = \"[a, b]\"\n"), "") << "a string";
}

TEST(ConfigFileTest, AnEmptyBooleanIsNotTrue) {
  for (const char* text :
       {"insecure = \"\"\n", "insecure = ''\n", "insecure =\n", "insecure = # true\n"}) {
    EXPECT_THAT(ErrorOf(text), HasSubstr("line 1: 'insecure' is empty, must be true or false"));
  }
  EXPECT_EQ(ErrorOf("insecure = \"false\"\ntls-cert = \"\"\n"), "");
}

// As far as it can be told.
TEST(ConfigFileTest, AFileThatWasCutIsRefused) {
  EXPECT_THAT(ErrorOf("x = 1\ninsecure"), HasSubstr("line 2: 'insecure' must be KEY = VALUE"));
  EXPECT_THAT(ErrorOf("x = 1\nlisten = [\"a:1\",\n"),
              HasSubstr("line 2: the list that begins here does not end"));
}

}  // namespace
}  // namespace tcgemm
