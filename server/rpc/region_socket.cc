#include "server/rpc/region_socket.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "server/engine/resident_store.h"

namespace tcgemm {
namespace {

constexpr absl::string_view kRefused =
    "refused: no such token for this user: it is wrong, was used, or its HoldRegion call has ended";
constexpr absl::string_view kCrowded = "refused: too many connections wait here; try again";

// In time that does not tell how many bytes are right.
bool SameToken(const RegionToken& a, const RegionToken& b) {
  unsigned difference = 0;
  for (size_t i = 0; i < a.size(); ++i) difference |= static_cast<unsigned>(a[i] ^ b[i]);
  return difference == 0;
}

// One message, with the descriptor `passed` unless that is −1. A client that does not take it gets
// none: its buffer is empty, so that there is room for it.
void Answer(int fd, absl::string_view text, int passed) {
  iovec bytes = {.iov_base = const_cast<char*>(text.data()), .iov_len = text.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message = {};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  if (passed >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &passed, sizeof(int));
  }
  (void)sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

}  // namespace

absl::StatusOr<std::unique_ptr<RegionSocket>> RegionSocket::Start(
    const std::vector<std::string>& paths, Nanos patience) {
  const int wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake_fd < 0) return absl::UnavailableError("no file descriptor for the region socket");
  std::unique_ptr<RegionSocket> socket(new RegionSocket(wake_fd, patience));
  for (const std::string& path : paths) {
    TCGEMM_ASSIGN_OR_RETURN(auto listener, UnixListener::Bind(path));
    socket->listeners_.push_back(std::move(listener));
  }
  RegionSocket* const self = socket.get();
  self->thread_ = std::thread([self] { self->Loop(); });
  for (const auto& listener : self->listeners_) {
    TCGEMM_RETURN_IF_ERROR(
        listener->StartAccepting([self](int fd, uid_t user) { self->Accept(fd, user); }));
  }
  return socket;
}

RegionSocket::~RegionSocket() {
  Stop();
  close(wake_fd_);
}

void RegionSocket::Stop() {
  for (const auto& listener : listeners_) listener->StopAccepting();
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
  }
  Wake();
  if (thread_.joinable()) thread_.join();
  listeners_.clear();
  MutexLock lock(&mutex_);
  for (const Connection& connection : connections_) close(connection.fd);
  connections_.clear();
}

void RegionSocket::Wake() const {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(wake_fd_, &one, sizeof(one));
}

absl::StatusOr<RegionToken> RegionSocket::Offer(SharedRegionRef region, uid_t user) {
  uint8_t bytes[16];
  TCGEMM_RETURN_IF_ERROR(ResidentStore::SystemRandom()(bytes));
  RegionToken token;
  std::copy(std::begin(bytes), std::end(bytes), token.begin());
  MutexLock lock(&mutex_);
  offered_.push_back({.token = token, .region = std::move(region), .user = user});
  return token;
}

void RegionSocket::Withdraw(const RegionToken& token) {
  std::list<Offered> gone;  // without the lock
  MutexLock lock(&mutex_);
  for (auto it = offered_.begin(); it != offered_.end(); ++it) {
    if (!SameToken(it->token, token)) continue;
    gone.splice(gone.end(), offered_, it);
    return;
  }
}

int RegionSocket::Redeem(const RegionToken& token, uid_t user) {
  std::list<Offered> redeemed;  // goes without the lock
  MutexLock lock(&mutex_);
  for (auto it = offered_.begin(); it != offered_.end(); ++it) {
    if (!SameToken(it->token, token) || it->user != user) continue;
    redeemed.splice(redeemed.end(), offered_, it);
    // A copy, so that no reference is left when the client has its answer.
    return fcntl(redeemed.front().region->fd(), F_DUPFD_CLOEXEC, 0);
  }
  return -1;
}

int RegionSocket::connections() const {
  MutexLock lock(&mutex_);
  return static_cast<int>(connections_.size());
}

void RegionSocket::Accept(int fd, uid_t user) {
  {
    MutexLock lock(&mutex_);
    const auto of_user = std::count_if(connections_.begin(), connections_.end(),
                                       [user](const Connection& c) { return c.user == user; });
    if (connections_.size() < kMaxConnections && of_user < kMaxOfUser) {
      connections_.push_back(
          {.fd = fd, .user = user, .until = Clock::Real()->Now() + patience_, .token = {}});
      fd = -1;
    }
  }
  if (fd < 0) {
    Wake();
    return;
  }
  Answer(fd, kCrowded, -1);
  close(fd);
}

void RegionSocket::Loop() {
  pthread_setname_np(pthread_self(), "region-socket");
  std::vector<int> ready;
  while (WaitForInput(ready)) {
    for (const int fd : ready) Serve(fd);
    CloseLate();
  }
}

bool RegionSocket::WaitForInput(std::vector<int>& ready) {
  std::vector<pollfd> waits = {{.fd = wake_fd_, .events = POLLIN, .revents = 0}};
  TimePoint first = kInfiniteFuture;
  {
    MutexLock lock(&mutex_);
    if (stopping_) return false;
    for (const Connection& connection : connections_) {
      waits.push_back({.fd = connection.fd, .events = POLLIN, .revents = 0});
      first = std::min(first, connection.until);
    }
  }
  int timeout_ms = -1;
  if (first != kInfiniteFuture) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(first - Clock::Real()->Now());
    timeout_ms = static_cast<int>(std::max<int64_t>(0, left.count()));
  }
  poll(waits.data(), waits.size(), timeout_ms);
  uint64_t ignored;
  [[maybe_unused]] const ssize_t cleared = read(wake_fd_, &ignored, sizeof(ignored));
  ready.clear();
  for (size_t i = 1; i < waits.size(); ++i) {
    if (waits[i].revents != 0) ready.push_back(waits[i].fd);
  }
  return true;
}

void RegionSocket::CloseLate() {
  const TimePoint now = Clock::Real()->Now();
  MutexLock lock(&mutex_);
  for (auto it = connections_.begin(); it != connections_.end();) {
    if (it->until > now) {
      ++it;
      continue;
    }
    close(it->fd);
    it = connections_.erase(it);
  }
}

void RegionSocket::Serve(int fd) {
  // Only this thread takes connections away.
  Connection* connection = nullptr;
  {
    MutexLock lock(&mutex_);
    for (Connection& c : connections_) {
      if (c.fd == fd) connection = &c;
    }
  }
  RegionToken& token = connection->token;
  const ssize_t got = recv(fd, token.data() + connection->received,
                           token.size() - connection->received, MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got > 0) {
    connection->received += static_cast<size_t>(got);
    if (connection->received < token.size()) return;
    const int passed = Redeem(token, connection->user);
    Answer(fd, passed < 0 ? kRefused : "OK", passed);
    if (passed >= 0) close(passed);
  }
  MutexLock lock(&mutex_);
  connections_.remove_if([fd](const Connection& c) { return c.fd == fd; });
  close(fd);
}

}  // namespace tcgemm
