#include "server/rpc/peer_key.h"

#include <gtest/gtest.h>

namespace tcgemm {
namespace {

TEST(PeerKeyTest, IsTheCallerOrTheHost) {
  EXPECT_EQ(PeerKey("ipv4:10.0.0.1:5555", {}), "ipv4:10.0.0.1");
  EXPECT_EQ(PeerKey("fd:7", {.identity = "uid:5"}), "uid:5");
  EXPECT_EQ(PeerKey("ipv4:10.0.0.1:5555", {.identity = "token:a"}), "token:a");
  EXPECT_EQ(PeerKey("fd:7", {}), "fd");
  EXPECT_EQ(PeerKey("", {}), "");
}

TEST(PeerKeyTest, LoopbackIsOne) {
  for (const char* peer :
       {"ipv4:127.0.0.1:5555", "ipv4:127.8.9.10:1", "ipv6:%5B::1%5D:5555", "ipv6:[::1]:5555",
        "ipv6:%5B::ffff:127.0.0.1%5D:7", "ipv6:[::ffff:127.0.0.2]:7"}) {
    EXPECT_EQ(PeerKey(peer, {}), "loopback") << peer;
  }
}

TEST(PeerKeyTest, AnIpv4AddressWrittenAsIpv6IsTheSame) {
  EXPECT_EQ(PeerKey("ipv6:%5B::ffff:10.0.0.1%5D:5555", {}), "ipv4:10.0.0.1");
}

TEST(PeerKeyTest, Ipv6CountsBySubnet) {
  EXPECT_EQ(PeerKey("ipv6:%5B2001:db8:0:7:1:2:3:4%5D:5555", {}), "ipv6:2001:db8:0:7::/64");
  EXPECT_EQ(PeerKey("ipv6:[2001:db8:0:7::9]:5555", {}), "ipv6:2001:db8:0:7::/64");
  EXPECT_EQ(PeerKey("ipv6:[2001:db8:0:8::9]:5555", {}), "ipv6:2001:db8:0:8::/64");
  EXPECT_EQ(PeerKey("ipv6:%5Bfe80::1%25eth0%5D:5555", {}), "ipv6:fe80::/64");
}

}  // namespace
}  // namespace tcgemm
