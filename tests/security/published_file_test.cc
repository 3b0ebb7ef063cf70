#include "server/security/published_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <iterator>
#include <string>

namespace tcgemm {
namespace {

std::string Read(std::istream& stream) {
  return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

struct stat Stat(const std::string& path) {
  struct stat status {};
  EXPECT_EQ(stat(path.c_str(), &status), 0);
  return status;
}

TEST(PublishedFileTest, IsReadAndReplacedAsAWhole) {
  const auto file = PublishedFile::Create("one").value();
  const struct stat before = Stat(file->path());
  EXPECT_EQ(before.st_mode & 0777, 0400u);
  std::ifstream early(file->path());
  for (const char* const text : {"two", "three"}) {
    ASSERT_TRUE(file->Replace(text).ok());
    std::ifstream now(file->path());
    EXPECT_EQ(Read(now), text);
  }
  // However fast it goes, each has a time of its own.
  EXPECT_GE(Stat(file->path()).st_mtim.tv_sec, before.st_mtim.tv_sec + 2);
  EXPECT_EQ(Read(early), "one");
}

TEST(PublishedFileTest, GoesWithItsOwner) {
  auto file = PublishedFile::Create("one").value();
  const std::string path = file->path();
  file.reset();
  EXPECT_FALSE(std::ifstream(path).is_open());
}

}  // namespace
}  // namespace tcgemm
