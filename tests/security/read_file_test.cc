#include "server/security/read_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <string>

#include "tests/security/test_certificates.h"

namespace tcgemm {
namespace {

TEST(ReadFileTest, WholeOrNamed) {
  const TestFolder folder;
  const std::string path = folder.Write("f", std::string("a\0b\n", 4));
  EXPECT_EQ(ReadSmallFile({"--flag", path}).value(), std::string("a\0b\n", 4));
  EXPECT_EQ(ReadSmallFile({"--flag", folder.Write("empty", "")}).value(), "");
  const std::string missing = folder.path("missing");
  const absl::Status status = ReadSmallFile({"--flag", missing}).status();
  EXPECT_TRUE(absl::IsNotFound(status));
  EXPECT_EQ(status.message(), "--flag " + missing + ": No such file or directory");
  EXPECT_FALSE(ReadSmallFile({"--flag", folder.path("")}).ok());
}

TEST(ReadFileTest, DoesNotWaitForAWriter) {
  const TestFolder folder;
  const std::string pipe = folder.path("pipe");
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  const absl::Status status = ReadSmallFile({"--flag", pipe}).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_EQ(status.message(), "--flag " + pipe + " is not a regular file");
  EXPECT_TRUE(absl::IsInvalidArgument(ReadSmallFile({"--flag", "/dev/zero"}).status()));
}

TEST(ReadFileTest, OnlyARegularFileIsAFile) {
  const TestFolder folder;
  EXPECT_EQ(CheckRegularFile(folder.path("")), folder.path("") + " is not a regular file");
  EXPECT_EQ(CheckRegularFile("/dev/zero"), "/dev/zero is not a regular file");
  EXPECT_EQ(CheckRegularFile(folder.Write("f", "")), "");
  EXPECT_EQ(CheckRegularFile(folder.path("none")), "") << "who reads it says so";
}

TEST(ReadFileTest, HasALimit) {
  const TestFolder folder;
  const std::string most = folder.Write("most", std::string(1 << 20, 'x'));
  const std::string more = folder.Write("more", std::string((1 << 20) + 1, 'x'));
  EXPECT_EQ(ReadSmallFile({"--flag", most}).value().size(), 1u << 20);
  EXPECT_TRUE(absl::IsInvalidArgument(ReadSmallFile({"--flag", more}).status()));
}

}  // namespace
}  // namespace tcgemm
