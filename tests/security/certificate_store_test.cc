#include "server/security/certificate_store.h"

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
using ::testing::IsEmpty;
using ::testing::Pair;

class CertificateStoreTest : public ::testing::Test, public SecurityEvents {
 protected:
  void OnCertificate(int64_t expires_at) override { expires_ = expires_at; }
  void OnCertificateReload(bool ok) override { reloads_.push_back(ok); }

  static TestPair NewPair(int64_t until) {
    return MakePair("server", {.from = kNow - 100, .until = until});
  }
  void Write(const TestPair& pair) {
    folder_.Write("cert", pair.cert);
    folder_.Write("key", pair.key);
  }
  absl::StatusOr<std::unique_ptr<CertificateStore>> Open() {
    return CertificateStore::Create(
        {.files = {.cert = folder_.path("cert"), .key = folder_.path("key")},
         .events = this,
         .log = [this](bool refused, const std::string& line) { log_.emplace_back(refused, line); },
         .now = [this] { return now_; }});
  }

  const TestFolder folder_;
  int64_t now_ = kNow;
  int64_t expires_ = 0;
  std::vector<bool> reloads_;
  std::vector<std::pair<bool, std::string>> log_;
};

TEST_F(CertificateStoreTest, StartsWithGoodFilesAlone) {
  EXPECT_TRUE(absl::IsNotFound(Open().status()));
  Write({.cert = NewPair(kNow + 9).cert, .key = NewPair(kNow + 9).key});
  EXPECT_TRUE(absl::IsInvalidArgument(Open().status()));
  Write(NewPair(kNow + 9));
  const auto store = Open();
  ASSERT_TRUE(store.ok()) << store.status();
  EXPECT_EQ(expires_, kNow + 9);
  EXPECT_NE((*store)->Credentials(), nullptr);
  EXPECT_THAT(reloads_, IsEmpty());
}

TEST_F(CertificateStoreTest, GoodFilesReplaceTheOldOnes) {
  Write(NewPair(kNow + 9));
  const auto store = Open().value();
  EXPECT_FALSE(store->Reload().value());
  Write(NewPair(kNow + 20));
  EXPECT_TRUE(store->Reload().value());
  EXPECT_FALSE(store->Reload().value());
  EXPECT_EQ(expires_, kNow + 20);
  EXPECT_THAT(reloads_, ElementsAre(true));
  Write(NewPair(kNow + 30));
  store->Poll();  // what is good is not waited for
  EXPECT_EQ(expires_, kNow + 30);
}

TEST_F(CertificateStoreTest, BadFilesChangeNothingAndAreToldOnce) {
  Write(NewPair(kNow + 9));
  const auto store = Open().value();
  Write({.cert = NewPair(kNow + 20).cert, .key = NewPair(kNow + 20).key});
  EXPECT_TRUE(absl::IsInvalidArgument(store->Reload().status()));
  EXPECT_TRUE(absl::IsInvalidArgument(store->Reload().status()));
  store->Poll();
  store->Poll();
  EXPECT_EQ(expires_, kNow + 9);
  EXPECT_THAT(reloads_, ElementsAre(false));
  EXPECT_THAT(log_, ElementsAre(Pair(true, HasSubstr("is not the key of"))));
  Write(NewPair(kNow - 1));
  EXPECT_FALSE(store->Reload().ok());
  EXPECT_THAT(reloads_, ElementsAre(false, false));
  EXPECT_THAT(log_.back().second, HasSubstr("has expired"));
  Write(NewPair(kNow + 30));
  EXPECT_TRUE(store->Reload().value());
  EXPECT_EQ(expires_, kNow + 30);
}

TEST_F(CertificateStoreTest, FilesThatAreBeingReplacedAreNotRefused) {
  Write(NewPair(kNow + 9));
  const auto store = Open().value();
  const TestPair next = NewPair(kNow + 20);
  folder_.Write("key", next.key);
  store->Poll();  // the certificate is still to come
  EXPECT_THAT(log_, IsEmpty());
  folder_.Write("cert", next.cert);
  store->Poll();
  EXPECT_THAT(reloads_, ElementsAre(true));
  folder_.Write("key", "no key");
  store->Poll();
  store->Poll();
  EXPECT_THAT(reloads_, ElementsAre(true, false));
}

TEST_F(CertificateStoreTest, WhatIsServedMayExpireWithoutNews) {
  Write(NewPair(kNow + 9));
  const auto store = Open().value();
  now_ = kNow + 100;
  store->Poll();
  store->Poll();
  EXPECT_FALSE(store->Reload().value());
  EXPECT_THAT(log_, IsEmpty());
}

}  // namespace
}  // namespace tcgemm
