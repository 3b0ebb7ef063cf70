// The socket beside a server's unix socket, where the descriptor of a shared-memory region is
// fetched.
#ifndef TCGEMM_CLIENT_SIDE_SOCKET_H_
#define TCGEMM_CLIENT_SIDE_SOCKET_H_

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/clock.h"

namespace tcgemm::client {

struct SideSocket {
  // Where the client sees it: its own way to the server, with ".regions" behind it.
  std::string path;
  // Where the server sees it; tried when there is nothing at `path`.
  std::string server_path;
};

// A descriptor, owned by the caller. FAILED_PRECONDITION when there is no such socket,
// DEADLINE_EXCEEDED after `timeout` of silence, PERMISSION_DENIED with the server's words when it
// refuses; INTERNAL when what came is no answer.
absl::StatusOr<int> FetchRegionFd(const SideSocket& socket, absl::string_view token, Nanos timeout);

// Maps `bytes` of it, shared, and closes it. INTERNAL unless it is sealed memory of that size: the
// server, or whoever answers in its place, could otherwise take it away under this process
// (SIGBUS).
absl::StatusOr<std::byte*> MapRegionFd(int fd, size_t bytes);

}  // namespace tcgemm::client

#endif  // TCGEMM_CLIENT_SIDE_SOCKET_H_
