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
  std::optional<size_t> bytes;
  std::istringstream stream(text);
  std::vector<CLI::ConfigItem> items = ConfigFile(&bytes).from_config(stream);
  EXPECT_EQ(bytes, text.size());
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

TEST(ConfigFileTest, AKeySetTwiceIsAnErrorThatNamesBothLines) {
  try {
    Read("max-batch = 3\nlog-level = \"info\"\n  max-batch=4\n");
    FAIL() << "the last one won";
  } catch (const CLI::ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("'max-batch' is set twice, in lines 1 and 3"));
  }
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
