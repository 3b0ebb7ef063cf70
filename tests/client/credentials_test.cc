#include "client/credentials.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <string>

#include "client/channel.h"

namespace tcgemm::client {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class TestFile {
 public:
  explicit TestFile(const std::string& text)
      : path_(::testing::TempDir() + "/tcgemm-credentials-" + std::to_string(::getpid())) {
    std::ofstream(path_) << text;
  }
  ~TestFile() { std::remove(path_.c_str()); }
  const std::string& path() const { return path_; }

 private:
  const std::string path_;
};

std::string Wrong(const std::string& server, const ClientSecurity& security) {
  const auto made = MakeCredentials(server, security);
  EXPECT_TRUE(absl::IsInvalidArgument(made.status())) << made.status();
  // As a channel too.
  EXPECT_EQ(MakeChannel({.server = server, .security = security}).status(), made.status());
  return std::string(made.status().message());
}

TEST(CredentialsTest, OnlySomeAddressesStayHere) {
  for (const char* const here :
       {"unix:/x", "localhost:1", "127.0.0.1:1", "127.9.9.9:1", "[::1]:1"}) {
    EXPECT_TRUE(StaysOnThisMachine(here)) << here;
  }
  for (const char* const away : {"gpu1:1", "10.0.0.1:1", "127.evil.example:1", "[::2]:1",
                                 "localhost.example:1", "0.0.0.0:1"}) {
    EXPECT_FALSE(StaysOnThisMachine(away)) << away;
  }
}

TEST(CredentialsTest, WhatDoesNotGoTogetherIsNamed) {
  EXPECT_THAT(Wrong("h:1", {.tls_cert = "c"}), HasSubstr("go together"));
  EXPECT_THAT(Wrong("h:1", {.tls_key = "k"}), HasSubstr("go together"));
  EXPECT_THAT(Wrong("h:1", {.tls_cert = "c", .tls_key = "k"}), HasSubstr("need --tls-ca"));
  EXPECT_THAT(Wrong("h:1", {.tls_server_name = "n"}), HasSubstr("need --tls-ca"));
  EXPECT_THAT(Wrong("h:1", {.tls_ca = "/nonexistent/ca"}),
              HasSubstr("--tls-ca /nonexistent/ca: No such file"));
  const TestFile empty("");
  EXPECT_THAT(Wrong("h:1", {.tls_ca = empty.path()}), HasSubstr("empty"));
  const TestFile ca("a certificate");
  EXPECT_THAT(Wrong("h:1", {.tls_ca = ca.path(), .tls_cert = "/nonexistent/c", .tls_key = "k"}),
              HasSubstr("--tls-cert /nonexistent/c"));
  EXPECT_TRUE(MakeCredentials("h:1", {.tls_ca = ca.path()}).ok());
}

TEST(CredentialsTest, ATokenTravelsEncryptedOrNotAtAll) {
  const std::string refused = Wrong("gpu1:1", {.token = "s3cret"});
  EXPECT_THAT(refused, HasSubstr("--tls-ca"));
  EXPECT_THAT(refused, Not(HasSubstr("s3cret")));
  const std::string malformed = Wrong("127.0.0.1:1", {.token = "a b"});
  EXPECT_THAT(malformed, Not(HasSubstr("a b")));
  const TestFile ca("a certificate");
  EXPECT_TRUE(MakeCredentials("gpu1:1", {.tls_ca = ca.path(), .token = "s3cret"}).ok());
  EXPECT_TRUE(MakeCredentials("127.0.0.1:1", {.token = "s3cret"}).ok());
  EXPECT_TRUE(MakeCredentials("unix:/x", {.token = "s3cret"}).ok());
}

TEST(CredentialsTest, TokensAreOfTheirCharacters) {
  for (const char* const good : {"a", "Az09-._~+/", "a==", "abc="}) EXPECT_TRUE(IsToken(good));
  for (const char* const bad : {"", "=", "a=b", "a b", "a\n", "\xc3\xa4", "a\"", "a:"}) {
    EXPECT_FALSE(IsToken(bad)) << bad;
  }
  EXPECT_TRUE(IsToken(std::string(4096, 'a')));
  EXPECT_FALSE(IsToken(std::string(4097, 'a')));
}

TEST(CredentialsTest, TheFirstLineOfAFileIsTheToken) {
  const TestFile file(" s3cret \r\nmore\n");
  EXPECT_EQ(ReadToken(file.path()).value(), "s3cret");
  EXPECT_TRUE(absl::IsInvalidArgument(ReadToken("/nonexistent/token").status()));
}

TEST(CredentialsTest, WhatIsNoTokenIsNotRepeated) {
  const TestFile file("two words\n");
  const absl::Status refused = ReadToken(file.path()).status();
  EXPECT_TRUE(absl::IsInvalidArgument(refused));
  EXPECT_THAT(std::string(refused.message()), HasSubstr(file.path()));
  EXPECT_THAT(std::string(refused.message()), Not(HasSubstr("two words")));
}

}  // namespace
}  // namespace tcgemm::client
