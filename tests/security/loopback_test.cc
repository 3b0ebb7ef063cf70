#include "server/security/loopback.h"

#include <gtest/gtest.h>

namespace tcgemm {
namespace {

TEST(LoopbackTest, OnlyWhatStaysOnThisMachine) {
  for (const char* const local :
       {"unix:/run/x", "127.0.0.1:1", "127.9.8.7:1", "[::1]:1", "[::ffff:127.0.0.1]:5"}) {
    EXPECT_TRUE(IsLocalAddress(local)) << local;
  }
  for (const char* const remote :
       {"0.0.0.0:1", "[::]:1", ":1", "10.0.0.1:1", "128.0.0.1:1", "[::ffff:10.0.0.1]:5",
        "[fe80::1]:1", "*:1", "nonsense", "no-such-name.invalid:1"}) {
    EXPECT_FALSE(IsLocalAddress(remote)) << remote;
  }
}

}  // namespace
}  // namespace tcgemm
