#include "server/security/tokens.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "tests/security/test_certificates.h"

namespace tcgemm {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::Pair;

// printf %s one | sha256sum
constexpr char kOne[] = "7692c3ad3540bb803c020b3aee66cd8887123234ea0c6e7143c0add73ff431ed";
constexpr char kTwo[] = "3fc4ccfe745870e2c0d99f71f30ff0656c8dedd41cc1d7d3d376b0dbe685e2f3";

TEST(TokenTableTest, FindsWhoseTokenItIs) {
  const auto table =
      TokenTable::Parse(std::string("# the team\n\n  alice:") + kOne + " \r\nbob@x:" + kTwo);
  ASSERT_TRUE(table.ok()) << table.status();
  EXPECT_EQ(table->size(), 2u);
  EXPECT_EQ(table->Find("one"), "alice");
  EXPECT_EQ(table->Find("two"), "bob@x");
  for (const char* const wrong : {"", "One", "one ", "three", kOne}) {
    EXPECT_FALSE(table->Find(wrong).has_value()) << wrong;
  }
}

TEST(TokenTableTest, OneIdMayHaveSeveralTokens) {
  const auto table =
      TokenTable::Parse(std::string("alice:") + kOne + "\nalice:" + kTwo + "\n").value();
  EXPECT_EQ(table.Find("one"), "alice");
  EXPECT_EQ(table.Find("two"), "alice");
}

TEST(TokenTableTest, CapitalDigitsAreTheSame) {
  std::string hash = kOne;
  for (char& c : hash) c = static_cast<char>(std::toupper(c));
  EXPECT_EQ(TokenTable::Parse("alice:" + hash).value().Find("one"), "alice");
}

TEST(TokenTableTest, WhatIsWrongIsNamedByItsLine) {
  const std::string good = std::string("alice:") + kOne + "\n";
  for (const std::string& bad :
       {std::string("alice"), std::string("alice:secret"), ":" + std::string(kTwo),
        "a b:" + std::string(kTwo), "a:" + std::string(kTwo) + "0",
        "a:" + std::string(kTwo).substr(1) + "g", std::string(65, 'a') + ":" + kTwo}) {
    const absl::Status wrong = TokenTable::Parse(good + bad).status();
    EXPECT_TRUE(absl::IsInvalidArgument(wrong)) << bad;
    EXPECT_THAT(std::string(wrong.message()), HasSubstr("line 2 must be")) << bad;
    EXPECT_THAT(std::string(wrong.message()), Not(HasSubstr("secret")));
  }
  EXPECT_THAT(std::string(TokenTable::Parse(good + "bob:" + kOne).status().message()),
              HasSubstr("line 2 repeats"));
  constexpr char kOfNothing[] = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
  EXPECT_EQ(TokenTable::Parse(good + "bob:" + kOfNothing).status().message(),
            "line 2 is the hash of no token");
  EXPECT_FALSE(TokenTable::Parse(good)->Find("").has_value());
  EXPECT_FALSE(TokenTable::Parse("# nobody\n").ok());
}

TEST(TokenFileTest, FollowsItsFile) {
  const TestFolder folder;
  std::vector<std::pair<bool, std::string>> log;
  const auto note = [&](bool refused, const std::string& line) { log.emplace_back(refused, line); };
  EXPECT_TRUE(absl::IsNotFound(TokenFile::Open(folder.path("tokens"), note).status()));
  const std::string path = folder.Write("tokens", std::string("alice:") + kOne);
  const auto file = TokenFile::Open(path, note).value();
  EXPECT_FALSE(file->Reload().value());
  const auto before = file->table();
  folder.Write("tokens", std::string("bob:") + kTwo);
  EXPECT_TRUE(file->Reload().value());
  EXPECT_EQ(file->table()->Find("two"), "bob");
  EXPECT_FALSE(file->table()->Find("one").has_value());
  EXPECT_EQ(before->Find("one"), "alice");  // who has the old one reads on in it
  EXPECT_THAT(log, ElementsAre(Pair(false, HasSubstr("1 tokens"))));
}

TEST(TokenFileTest, ABadFileChangesNothingAndIsToldOnce) {
  const TestFolder folder;
  std::vector<std::pair<bool, std::string>> log;
  const std::string path = folder.Write("tokens", std::string("alice:") + kOne);
  const auto file = TokenFile::Open(path, [&](bool refused, const std::string& line) {
                      log.emplace_back(refused, line);
                    }).value();
  folder.Write("tokens", "alice:s3cret");
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(file->Reload().ok());
  EXPECT_EQ(file->table()->Find("one"), "alice");
  ASSERT_THAT(log, ElementsAre(Pair(true, HasSubstr("--token-file " + path + ": line 1"))));
  EXPECT_THAT(log[0].second, Not(HasSubstr("s3cret")));
  folder.Write("tokens", std::string("alice:") + kOne);
  EXPECT_FALSE(file->Reload().value());
  EXPECT_EQ(log.size(), 1u);
}

}  // namespace
}  // namespace tcgemm
