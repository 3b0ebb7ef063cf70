// Who counts as one where calls are limited by who makes them.
#ifndef TCGEMM_SERVER_RPC_PEER_KEY_H_
#define TCGEMM_SERVER_RPC_PEER_KEY_H_

#include <string>

#include "server/engine/caller.h"

namespace tcgemm {

// The caller. An anonymous one is its machine, by `peer`, which is gRPC's ("ipv4:10.0.0.1:5555"):
// the IPv4 address, written as IPv6 or not; of IPv6 the first 64 bits, since whoever has one such
// address usually has all of its subnet's; every loopback address is "loopback".
std::string PeerKey(const std::string& peer, const Caller& caller);

}  // namespace tcgemm

#endif  // TCGEMM_SERVER_RPC_PEER_KEY_H_
