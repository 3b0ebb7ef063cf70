#include "server/rpc/accept_loop.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"

namespace tcgemm {
namespace {

// How long the loop rests when there is no descriptor or no memory for a connection.
constexpr int kRestMs = 50;
constexpr int kReservedDescriptors = 64;

}  // namespace

int OpenFileLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return std::numeric_limits<int>::max();
  return static_cast<int>(std::min<rlim_t>(limit.rlim_cur, std::numeric_limits<int>::max()));
}

int ConnectionDescriptorLimit(int open_files) {
  return open_files - std::min(kReservedDescriptors, open_files / 4);
}

AcceptLoop::~AcceptLoop() {
  Stop();
  if (wake_fd_ >= 0) close(wake_fd_);
}

absl::Status AcceptLoop::Start(const char* name, std::vector<int> listening,
                               AcceptHandlers handlers) {
  wake_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake_fd_ < 0) return absl::UnavailableError(absl::StrCat("eventfd: ", strerror(errno)));
  listening_ = std::move(listening);
  handlers_ = std::move(handlers);
  descriptor_limit_ = ConnectionDescriptorLimit(OpenFileLimit());
  thread_ = std::thread([this, name] { Run(name); });
  return absl::OkStatus();
}

void AcceptLoop::Stop() {
  if (!thread_.joinable()) return;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(wake_fd_, &one, sizeof(one));
  thread_.join();
}

void AcceptLoop::Run(const char* name) {
  pthread_setname_np(pthread_self(), name);
  std::vector<pollfd> waits = {{.fd = wake_fd_, .events = POLLIN}};
  for (const int fd : listening_) waits.push_back({.fd = fd, .events = POLLIN});
  while (true) {
    poll(waits.data(), waits.size(), -1);
    if (waits[0].revents != 0) return;
    bool rest = false;
    for (size_t i = 1; i < waits.size(); ++i) {
      if ((waits[i].revents & POLLIN) != 0 && !AcceptOne(waits[i].fd)) rest = true;
    }
    if (rest) poll(waits.data(), 1, kRestMs);
  }
}

bool AcceptLoop::AcceptOne(int listening) {
  const int fd = accept4(listening, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  // Whatever else accept says concerns one connection, which has gone.
  if (fd < 0) return errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM;
  if (fd < descriptor_limit_ && (handlers_.admit == nullptr || handlers_.admit(fd))) {
    handlers_.on_connection(fd);
    return true;
  }
  close(fd);
  if (handlers_.on_refused != nullptr) handlers_.on_refused();
  return true;
}

}  // namespace tcgemm
