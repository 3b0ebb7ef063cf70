// Which addresses nobody but this machine can reach.
#ifndef TCGEMM_SERVER_SECURITY_LOOPBACK_H_
#define TCGEMM_SERVER_SECURITY_LOOPBACK_H_

#include <string>

namespace tcgemm {

// For a --listen address: a unix socket, or a HOST:PORT all of whose addresses are loopback. A name
// is looked up, which may take as long as the resolver likes; one that is not known is no loopback.
bool IsLocalAddress(const std::string& address);

}  // namespace tcgemm

#endif  // TCGEMM_SERVER_SECURITY_LOOPBACK_H_
