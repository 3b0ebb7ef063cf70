#include "server/rpc/unix_listener.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "server/rpc/socket_error.h"

namespace tcgemm {
namespace {

struct FdCloser {
  int fd;
  ~FdCloser() {
    if (fd >= 0) close(fd);
  }
};

absl::StatusOr<sockaddr_un> UnixAddress(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(address.sun_path)) {
    return absl::InvalidArgumentError(absl::StrCat("unix socket path '", path, "' has ",
                                                   path.size(), " bytes, must have from 1 to ",
                                                   sizeof(address.sun_path) - 1));
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

// Removes what a dead server left; leaves everything else.
absl::Status RemoveStaleSocket(const std::string& path, const sockaddr_un& address) {
  struct stat status;
  if (lstat(path.c_str(), &status) != 0) return absl::OkStatus();
  if (!S_ISSOCK(status.st_mode)) {
    return absl::AlreadyExistsError(absl::StrCat("unix:", path, " exists and is no socket"));
  }
  const FdCloser probe{socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
  if (probe.fd < 0) return SocketError(errno, "socket");
  const int connected =
      connect(probe.fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  // EAGAIN: somebody listens, with a full backlog.
  if (connected == 0 || errno == EAGAIN) {
    return absl::AlreadyExistsError(
        absl::StrCat("unix:", path, " is taken: another server answers there"));
  }
  if (errno != ECONNREFUSED) return SocketError(errno, absl::StrCat("unix:", path));
  unlink(path.c_str());
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<UnixListener>> UnixListener::Bind(const std::string& path) {
  TCGEMM_ASSIGN_OR_RETURN(const sockaddr_un address, UnixAddress(path));
  TCGEMM_RETURN_IF_ERROR(RemoveStaleSocket(path, address));
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return SocketError(errno, "socket");
  FdCloser closer{fd};
  if (bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    return SocketError(errno, absl::StrCat("unix:", path));
  }
  struct stat status;
  if (listen(fd, SOMAXCONN) != 0 || lstat(path.c_str(), &status) != 0) {
    return SocketError(errno, absl::StrCat("unix:", path));
  }
  closer.fd = -1;
  return std::unique_ptr<UnixListener>(new UnixListener(path, fd, status.st_dev, status.st_ino));
}

absl::Status UnixListener::CheckPath(const std::string& path) { return UnixAddress(path).status(); }

UnixListener::UnixListener(std::string path, int fd, dev_t device, ino_t inode)
    : path_(std::move(path)), fd_(fd), device_(device), inode_(inode) {}

UnixListener::~UnixListener() {
  StopAccepting();
  struct stat status;
  if (lstat(path_.c_str(), &status) == 0 && status.st_dev == device_ && status.st_ino == inode_) {
    unlink(path_.c_str());
  }
  close(fd_);
}

absl::Status UnixListener::StartAccepting(OnConnection on_connection,
                                          std::function<void()> on_refused,
                                          std::function<bool(int fd)> admit) {
  const auto set_up = [on_connection = std::move(on_connection)](int fd) {
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &kSocketBufferBytes, sizeof(kSocketBufferBytes));
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &kSocketBufferBytes, sizeof(kSocketBufferBytes));
    ucred peer{.pid = 0, .uid = static_cast<uid_t>(-1), .gid = static_cast<gid_t>(-1)};
    socklen_t length = sizeof(peer);
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) {
      close(fd);
      return;
    }
    on_connection(fd, peer.uid);
  };
  return loop_.Start("unix-accept", {fd_}, {set_up, std::move(on_refused), std::move(admit)});
}

}  // namespace tcgemm
