#include "server/rpc/peer_key.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <array>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace tcgemm {
namespace {

constexpr char kLoopback[] = "loopback";

std::string KeyOfV4(const in_addr& address) {
  if (ntohl(address.s_addr) >> 24 == 127) return kLoopback;
  std::array<char, INET_ADDRSTRLEN> text{};
  inet_ntop(AF_INET, &address, text.data(), text.size());
  return absl::StrCat("ipv4:", text.data());
}

std::string KeyOfV6(const in6_addr& address) {
  if (IN6_IS_ADDR_LOOPBACK(&address)) return kLoopback;
  if (IN6_IS_ADDR_V4MAPPED(&address)) {
    in_addr v4;
    std::memcpy(&v4, &address.s6_addr[12], sizeof(v4));
    return KeyOfV4(v4);
  }
  in6_addr subnet = address;
  std::memset(&subnet.s6_addr[8], 0, 8);
  std::array<char, INET6_ADDRSTRLEN> text{};
  inet_ntop(AF_INET6, &subnet, text.data(), text.size());
  return absl::StrCat("ipv6:", text.data(), "/64");
}

}  // namespace

std::string PeerKey(const std::string& peer, const Caller& caller) {
  if (caller != Caller{}) return caller.identity;
  const std::string without_port = peer.substr(0, peer.rfind(':'));
  const size_t scheme = without_port.find(':');
  if (scheme == std::string::npos) return without_port;
  // gRPC writes [fe80::1%eth0] as %5Bfe80::1%25eth0%5D.
  std::string host = absl::StrReplaceAll(
      without_port.substr(scheme + 1),
      {{"%5B", ""}, {"%5b", ""}, {"%5D", ""}, {"%5d", ""}, {"[", ""}, {"]", ""}});
  host = host.substr(0, host.find('%'));
  in_addr v4;
  if (inet_pton(AF_INET, host.c_str(), &v4) == 1) return KeyOfV4(v4);
  in6_addr v6;
  if (inet_pton(AF_INET6, host.c_str(), &v6) == 1) return KeyOfV6(v6);
  return without_port;
}

}  // namespace tcgemm
