#include "server/rpc/listener.h"

#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tcgemm {
namespace {

// How long the accept loop rests when the process is out of file descriptors.
constexpr int kRestMs = 50;

absl::Status SystemError(int error, const std::string& what) {
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
  if (probe.fd < 0) return SystemError(errno, "socket");
  const int connected =
      connect(probe.fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  // EAGAIN: somebody listens, with a full backlog.
  if (connected == 0 || errno == EAGAIN) {
    return absl::AlreadyExistsError(
        absl::StrCat("unix:", path, " is taken: another server answers there"));
  }
  if (errno != ECONNREFUSED) return SystemError(errno, absl::StrCat("unix:", path));
  unlink(path.c_str());
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<UnixListener>> UnixListener::Bind(const std::string& path) {
  TCGEMM_ASSIGN_OR_RETURN(const sockaddr_un address, UnixAddress(path));
  TCGEMM_RETURN_IF_ERROR(RemoveStaleSocket(path, address));
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return SystemError(errno, "socket");
  FdCloser closer{fd};
  if (bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    return SystemError(errno, absl::StrCat("unix:", path));
  }
  struct stat status;
  if (listen(fd, SOMAXCONN) != 0 || lstat(path.c_str(), &status) != 0) {
    return SystemError(errno, absl::StrCat("unix:", path));
  }
  const int wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake_fd < 0) return SystemError(errno, "eventfd");
  closer.fd = -1;
  return std::unique_ptr<UnixListener>(
      new UnixListener(path, fd, wake_fd, status.st_dev, status.st_ino));
}

UnixListener::UnixListener(std::string path, int fd, int wake_fd, dev_t device, ino_t inode)
    : path_(std::move(path)), fd_(fd), wake_fd_(wake_fd), device_(device), inode_(inode) {}

UnixListener::~UnixListener() {
  StopAccepting();
  struct stat status;
  if (lstat(path_.c_str(), &status) == 0 && status.st_dev == device_ && status.st_ino == inode_) {
    unlink(path_.c_str());
  }
  close(fd_);
  close(wake_fd_);
}

void UnixListener::StartAccepting(OnConnection on_connection) {
  on_connection_ = std::move(on_connection);
  thread_ = std::thread([this] { AcceptLoop(); });
}

void UnixListener::StopAccepting() {
  if (!thread_.joinable()) return;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(wake_fd_, &one, sizeof(one));
  thread_.join();
}

void UnixListener::AcceptLoop() {
  pthread_setname_np(pthread_self(), "unix-accept");
  pollfd waits[] = {{.fd = wake_fd_, .events = POLLIN}, {.fd = fd_, .events = POLLIN}};
  while (true) {
    poll(waits, 2, -1);
    if (waits[0].revents != 0) return;
    if ((waits[1].revents & POLLIN) != 0 && !AcceptOne()) poll(waits, 1, kRestMs);
  }
}

bool UnixListener::AcceptOne() {
  const int fd = accept4(fd_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (fd < 0) return errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM;
  setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &kSocketBufferBytes, sizeof(kSocketBufferBytes));
  setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &kSocketBufferBytes, sizeof(kSocketBufferBytes));
  ucred peer{.pid = 0, .uid = static_cast<uid_t>(-1), .gid = static_cast<gid_t>(-1)};
  socklen_t length = sizeof(peer);
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) {
    close(fd);
    return true;
  }
  on_connection_(fd, peer.uid);
  return true;
}

absl::Status ProbeTcpAddress(const std::string& address) {
  const size_t colon = address.rfind(':');
  int port = 0;
  if (colon == std::string::npos || colon == 0 ||
      !absl::SimpleAtoi(address.substr(colon + 1), &port) || port < 0 || port > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat("address '", address, "' must be HOST:PORT or unix:/path"));
  }
  std::string host = address.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), address.substr(colon + 1).c_str(), &hints, &found);
  if (error != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("address '", address, "': ", gai_strerror(error)));
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, freeaddrinfo);
  const FdCloser probe{socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  if (probe.fd < 0) return SystemError(errno, absl::StrCat("address ", address));
  // As gRPC does: connections of an earlier server in TIME_WAIT do not make a port busy.
  const int reuse = 1;
  setsockopt(probe.fd, SOL_SOCKET, SO_REUSEADDR, &reuse, sizeof(reuse));
  if (bind(probe.fd, found->ai_addr, found->ai_addrlen) != 0 || listen(probe.fd, 1) != 0) {
    return SystemError(errno, absl::StrCat("cannot bind ", address));
  }
  return absl::OkStatus();
}

}  // namespace tcgemm
