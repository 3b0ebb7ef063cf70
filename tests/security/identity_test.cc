#include "server/security/identity.h"

#include <gtest/gtest.h>

#include <string>

namespace tcgemm {
namespace {

// printf %s one | sha256sum
constexpr char kOne[] = "alice:7692c3ad3540bb803c020b3aee66cd8887123234ea0c6e7143c0add73ff431ed";

std::string Who(const PeerEvidence& evidence, bool tokens = true) {
  const TokenTable table = TokenTable::Parse(kOne).value();
  const auto caller = Identify(evidence, tokens ? &table : nullptr);
  if (!caller.ok()) {
    EXPECT_TRUE(absl::IsUnauthenticated(caller.status()));
    // No hint of what is wrong.
    EXPECT_EQ(caller.status().message(), "no valid credentials: this server wants a token");
    return "nobody";
  }
  return caller->identity;
}

TEST(IdentityTest, TheFirstThatThereIs) {
  const std::vector<std::string_view> one = {"Bearer one"};
  EXPECT_EQ(Who({.certificate_name = "gpu7", .authorization = one, .uid = 5}), "cert:gpu7");
  EXPECT_EQ(Who({.authorization = one, .uid = 5}), "token:alice");
  EXPECT_EQ(Who({.authorization = one}), "token:alice");
  EXPECT_EQ(Who({.uid = 5}), "uid:5");
  EXPECT_EQ(Who({}, /*tokens=*/false), "anonymous");
}

TEST(IdentityTest, WithATableEverybodyNeedsSomething) {
  EXPECT_EQ(Who({}), "nobody");
  EXPECT_EQ(Who({.certificate_name = "gpu7"}), "cert:gpu7");
}

TEST(IdentityTest, AWrongTokenIsWrongWhateverElseThereIs) {
  for (const std::string_view header :
       {"Bearer two", "Bearer ", "Bearer", "", "one", "Basic one", "Bearer one ", "Bearer  one"}) {
    EXPECT_EQ(Who({.authorization = {header}}), "nobody") << header;
    EXPECT_EQ(Who({.certificate_name = "gpu7", .authorization = {header}, .uid = 5}), "nobody");
  }
  EXPECT_EQ(Who({.authorization = {"Bearer one", "Bearer one"}}), "nobody");
  EXPECT_EQ(Who({.authorization = {"bearer one"}}), "token:alice");
}

TEST(IdentityTest, WithoutATableHeadersMeanNothing) {
  EXPECT_EQ(Who({.authorization = {"Bearer one"}}, /*tokens=*/false), "anonymous");
  EXPECT_EQ(Who({.authorization = {"Bearer two"}, .uid = 5}, /*tokens=*/false), "uid:5");
}

TEST(IdentityTest, NamesAreSafeToLog) {
  EXPECT_EQ(Who({.certificate_name = "a\nb"}), "cert:a\\nb");
  EXPECT_EQ(Who({.certificate_name = std::string(300, 'x')}), "cert:" + std::string(256, 'x'));
}

}  // namespace
}  // namespace tcgemm
