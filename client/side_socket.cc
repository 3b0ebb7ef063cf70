#include "client/side_socket.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tcgemm::client {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

class Fd {
 public:
  explicit Fd(int fd) : fd_(fd) {}
  ~Fd() {
    if (fd_ >= 0) close(fd_);
  }
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;
  int get() const { return fd_; }

 private:
  const int fd_;
};

// 0, or what connect(2) says.
int Connect(int fd, const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty()) return ENOENT;
  if (path.size() >= sizeof(address.sun_path)) return ENAMETOOLONG;
  std::memcpy(address.sun_path, path.data(), path.size());
  const auto* const generic = reinterpret_cast<const sockaddr*>(&address);
  return connect(fd, generic, sizeof(address)) == 0 ? 0 : errno;
}

void SetTimeout(int fd, Nanos timeout) {
  const int64_t us = std::max<int64_t>(1, timeout.count() / 1000);
  const timeval time = {.tv_sec = static_cast<time_t>(us / 1'000'000),
                        .tv_usec = static_cast<suseconds_t>(us % 1'000'000)};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof(time));
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &time, sizeof(time));
}

// One message; the descriptor that came with it, or −1.
struct Answer {
  int fd = -1;
  std::string text;
  int error = 0;
};

Answer ReadAnswer(int fd) {
  char text[256];
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  iovec bytes = {.iov_base = text, .iov_len = sizeof(text)};
  msghdr message = {};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  ssize_t got;
  do {
    got = recvmsg(fd, &message, MSG_CMSG_CLOEXEC);
  } while (got < 0 && errno == EINTR);
  Answer answer;
  if (got < 0) answer.error = errno;
  if (got > 0) answer.text.assign(text, static_cast<size_t>(got));
  const cmsghdr* const header = CMSG_FIRSTHDR(&message);
  if (got > 0 && header != nullptr && header->cmsg_level == SOL_SOCKET &&
      header->cmsg_type == SCM_RIGHTS && header->cmsg_len == CMSG_LEN(sizeof(int))) {
    std::memcpy(&answer.fd, CMSG_DATA(header), sizeof(int));
  }
  return answer;
}

}  // namespace

absl::StatusOr<int> FetchRegionFd(const SideSocket& socket, absl::string_view token,
                                  Nanos timeout) {
  const Fd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (fd.get() < 0) return absl::InternalError(absl::StrCat("socket: ", std::strerror(errno)));
  SetTimeout(fd.get(), timeout);
  int error = Connect(fd.get(), socket.path);
  std::string path = socket.path;
  if (error == ENOENT && socket.server_path != path) {
    path = socket.server_path;
    error = Connect(fd.get(), path);
  }
  if (error != 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the side socket ", path, ": ", std::strerror(error),
        "; it lies beside the server's socket: a container must see both, and this user must be "
        "allowed to connect to both"));
  }
  // A server that closed it already may still have left its words.
  (void)send(fd.get(), token.data(), token.size(), MSG_NOSIGNAL);
  const Answer answer = ReadAnswer(fd.get());
  if (answer.fd >= 0) return answer.fd;
  if (answer.error == EAGAIN || answer.error == EWOULDBLOCK) {
    return absl::DeadlineExceededError(absl::StrCat("the side socket ", path, " says nothing"));
  }
  if (!answer.text.empty()) {
    return absl::PermissionDeniedError(absl::StrCat("the side socket ", path, ": ", answer.text));
  }
  return absl::InternalError(
      absl::StrCat("the side socket ", path, " was closed without an answer"));
}

absl::StatusOr<std::byte*> MapRegionFd(int fd, size_t bytes) {
  const Fd owned(fd);
  struct stat status;
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & kSeals) != kSeals || fstat(fd, &status) != 0 || status.st_size < 0 ||
      static_cast<size_t>(status.st_size) != bytes) {
    return absl::InternalError(
        absl::StrCat("the side socket gave no sealed memory of ", bytes, " bytes"));
  }
  void* const data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (data != MAP_FAILED) return static_cast<std::byte*>(data);
  return absl::ResourceExhaustedError(
      absl::StrCat("mapping ", bytes, " bytes: ", std::strerror(errno)));
}

}  // namespace tcgemm::client
