#include "server/security/certificates.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/security/test_certificates.h"

namespace tcgemm {
namespace {

using ::testing::HasSubstr;

constexpr Validity kValid = {.from = kNow - 100, .until = kNow + 100};
const TlsFiles kFiles = {.cert = "c.pem", .key = "k.pem"};

std::string Wrong(const TlsFiles& files, const TlsContents& contents, int64_t now = kNow) {
  const auto checked = CheckTlsContents(files, contents, now);
  EXPECT_TRUE(absl::IsInvalidArgument(checked.status())) << checked.status();
  return std::string(checked.status().message());
}

TEST(CertificatesTest, AGoodPairTellsItsExpiry) {
  const TestPair pair = MakePair("server", kValid);
  const auto checked = CheckTlsContents(kFiles, {pair.cert, pair.key, ""}, kNow);
  ASSERT_TRUE(checked.ok()) << checked.status();
  EXPECT_EQ(*checked, kNow + 100);
  // The chain's other certificates, and what stands between them, are taken along.
  const TestPair root = MakePair("root", kValid);
  EXPECT_TRUE(
      CheckTlsContents(kFiles, {pair.cert + "\nroot:\n" + root.cert, pair.key, ""}, kNow).ok());
}

TEST(CertificatesTest, TheDatesAreInclusiveAndExclusive) {
  const TestPair pair = MakePair("server", kValid);
  const TlsContents contents = {pair.cert, pair.key, ""};
  EXPECT_THAT(Wrong(kFiles, contents, kNow - 101), HasSubstr("--tls-cert c.pem: is valid only"));
  EXPECT_TRUE(CheckTlsContents(kFiles, contents, kNow - 99).ok());
  EXPECT_TRUE(CheckTlsContents(kFiles, contents, kNow + 99).ok());
  EXPECT_THAT(Wrong(kFiles, contents, kNow + 101),
              HasSubstr("--tls-cert c.pem: has expired on 2027-01-15T08:01:40Z"));
}

TEST(CertificatesTest, WhatIsWrongIsNamed) {
  const TestPair pair = MakePair("server", kValid);
  const TestPair other = MakePair("other", kValid);
  EXPECT_THAT(Wrong(kFiles, {pair.cert, other.key, ""}),
              HasSubstr("--tls-key k.pem: is not the key of the certificate in c.pem"));
  EXPECT_THAT(Wrong(kFiles, {"", pair.key, ""}), HasSubstr("c.pem: holds no PEM certificate"));
  EXPECT_THAT(Wrong(kFiles, {pair.key, pair.key, ""}), HasSubstr("no PEM certificate"));
  EXPECT_THAT(Wrong(kFiles, {pair.cert, pair.cert, ""}), HasSubstr("k.pem: holds no PEM private"));
  EXPECT_THAT(Wrong(kFiles, {pair.cert, Encrypt(pair), ""}), HasSubstr("without a password"));
  std::string cut = pair.cert;
  cut[cut.size() / 2] = '!';
  EXPECT_THAT(Wrong(kFiles, {cut, pair.key, ""}), HasSubstr("does not parse"));
  EXPECT_THAT(Wrong(kFiles, {pair.cert + cut, pair.key, ""}), HasSubstr("does not parse"));
  TlsFiles with_ca = kFiles;
  with_ca.client_ca = "ca.pem";
  EXPECT_THAT(Wrong(with_ca, {pair.cert, pair.key, "nothing"}),
              HasSubstr("--tls-client-ca ca.pem: holds no"));
  EXPECT_TRUE(CheckTlsContents(with_ca, {pair.cert, pair.key, other.cert}, kNow).ok());
}

TEST(CertificatesTest, FilesAreReadOrNamed) {
  const TestFolder folder;
  const std::string cert = folder.Write("c", "certificate");
  const std::string key = folder.Write("k", "key");
  const auto read = ReadTlsFiles({.cert = cert, .key = key});
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->cert, "certificate");
  EXPECT_EQ(read->key, "key");
  EXPECT_EQ(read->client_ca, "");
  const auto missing = ReadTlsFiles({.cert = cert, .key = folder.path("no")});
  EXPECT_TRUE(absl::IsNotFound(missing.status())) << missing.status();
  EXPECT_THAT(std::string(missing.status().message()), HasSubstr("--tls-key " + folder.path("no")));
  const std::string large = folder.Write("large", std::string((1 << 20) + 1, 'x'));
  EXPECT_TRUE(absl::IsInvalidArgument(ReadTlsFiles({.cert = large, .key = key}).status()));
  const auto directory = ReadTlsFiles({.cert = folder.path(""), .key = key});
  EXPECT_FALSE(directory.ok());
}

}  // namespace
}  // namespace tcgemm
