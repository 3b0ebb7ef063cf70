#include "server/rpc/socket_error.h"

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace tcgemm {

absl::Status SocketError(int error, const std::string& what) {
  const std::string message = absl::StrCat(what, ": ", std::strerror(error));
  switch (error) {
    case EADDRINUSE:
      return absl::AlreadyExistsError(message);
    case EACCES:
    case EPERM:
      return absl::PermissionDeniedError(message);
    case ENOENT:
    case ENOTDIR:
    case EADDRNOTAVAIL:
      return absl::NotFoundError(message);
    default:
      return absl::UnavailableError(message);
  }
}

}  // namespace tcgemm
