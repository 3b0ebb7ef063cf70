// What a system call about a socket said, as a status.
#ifndef TCGEMM_SERVER_RPC_SOCKET_ERROR_H_
#define TCGEMM_SERVER_RPC_SOCKET_ERROR_H_

#include <string>

#include "absl/status/status.h"

namespace tcgemm {

// `error` is an errno. "WHAT: words", ALREADY_EXISTS for an address in use, PERMISSION_DENIED or
// NOT_FOUND where bind(2) means that, else UNAVAILABLE.
absl::Status SocketError(int error, const std::string& what);

}  // namespace tcgemm

#endif  // TCGEMM_SERVER_RPC_SOCKET_ERROR_H_
