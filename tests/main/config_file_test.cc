#include "server/main/config_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

namespace tcgemm {
namespace {

using ::testing::HasSubstr;

std::vector<CLI::ConfigItem> Read(const std::string& text) {
  std::optional<size_t> keys;
  std::istringstream stream(text);
  std::vector<CLI::ConfigItem> items = ConfigFile(&keys).from_config(stream);
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

TEST(ConfigFileTest, OnlyARegularFileIsAFile) {
  std::string folder = ::testing::TempDir() + "/tcgemm-config-XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const std::string pipe = folder + "/pipe";
  const std::string file = folder + "/file";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  std::ofstream(file) << "";
  EXPECT_THAT(CheckRegularFile(pipe), HasSubstr("not a regular file"));
  EXPECT_THAT(CheckRegularFile(folder), HasSubstr("not a regular file"));
  EXPECT_EQ(CheckRegularFile(file), "");
  EXPECT_EQ(CheckRegularFile(folder + "/none"), "") << "who reads it says so";
  unlink(pipe.c_str());
  unlink(file.c_str());
  rmdir(folder.c_str());
}

}  // namespace
}  // namespace tcgemm
