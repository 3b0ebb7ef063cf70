#include "server/rpc/preface_wait.h"

#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"

namespace tcgemm {
namespace {

constexpr std::string_view kPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
constexpr size_t kFrameHeaderBytes = 9;
constexpr int kMaxFrameBytes = 1 << 14;  // before SETTINGS have changed it
constexpr int kEventsAtOnce = 64;

enum class Said { kNotAll, kAll, kOther };

// What the client has said so far. A frame of another type than SETTINGS is gRPC's to refuse.
Said LookAt(int fd) {
  std::array<char, kPreface.size() + kFrameHeaderBytes> start;
  const ssize_t got = recv(fd, start.data(), start.size(), MSG_PEEK | MSG_DONTWAIT);
  if (got < 0) return errno == EAGAIN || errno == EINTR ? Said::kNotAll : Said::kOther;
  const size_t bytes = static_cast<size_t>(got);
  if (got == 0 ||
      std::memcmp(start.data(), kPreface.data(), std::min(bytes, kPreface.size())) != 0) {
    return Said::kOther;
  }
  if (bytes < start.size()) return Said::kNotAll;
  int length = 0;
  for (size_t i = 0; i < 3; ++i) {
    length = length << 8 | static_cast<unsigned char>(start[kPreface.size() + i]);
  }
  int there = 0;
  if (ioctl(fd, FIONREAD, &there) != 0) return Said::kOther;
  return there - static_cast<int>(start.size()) >= std::min(length, kMaxFrameBytes) ? Said::kAll
                                                                                    : Said::kNotAll;
}

}  // namespace

absl::StatusOr<std::unique_ptr<PrefaceWait>> PrefaceWait::Start(Nanos patience) {
  const int epoll_fd = epoll_create1(EPOLL_CLOEXEC);
  const int wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  epoll_event event = {.events = EPOLLIN, .data = {.fd = wake_fd}};
  std::unique_ptr<PrefaceWait> wait(new PrefaceWait(patience, epoll_fd, wake_fd));
  if (epoll_fd < 0 || wake_fd < 0 || epoll_ctl(epoll_fd, EPOLL_CTL_ADD, wake_fd, &event) != 0) {
    return absl::UnavailableError(absl::StrCat("epoll: ", strerror(errno)));
  }
  wait->thread_ = std::thread([self = wait.get()] { self->Run(); });
  return wait;
}

PrefaceWait::~PrefaceWait() {
  Stop();
  if (epoll_fd_ >= 0) close(epoll_fd_);
  if (wake_fd_ >= 0) close(wake_fd_);
}

void PrefaceWait::Wake() const {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(wake_fd_, &one, sizeof(one));
}

void PrefaceWait::Add(int fd, OnPreface on_preface) {
  {
    MutexLock lock(&mutex_);
    // Each change is told once, or a client that sends half would keep the thread busy. What is
    // there already is told, too.
    epoll_event event = {.events = EPOLLIN | EPOLLRDHUP | EPOLLET, .data = {.fd = fd}};
    if (!stopping_) {
      by_fd_[fd] = waiting_.insert(waiting_.end(), {.fd = fd,
                                                    .until = Clock::Real()->Now() + patience_,
                                                    .on_preface = std::move(on_preface)});
      if (epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, fd, &event) == 0) {
        if (waiting_.size() == 1) Wake();  // to wait no longer than for this one
        return;
      }
      waiting_.erase(by_fd_[fd]);
      by_fd_.erase(fd);
    }
  }
  close(fd);
}

void PrefaceWait::Stop() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
  }
  Wake();
  if (thread_.joinable()) thread_.join();
  MutexLock lock(&mutex_);
  for (const Waiting& one : waiting_) close(one.fd);
  waiting_.clear();
  by_fd_.clear();
}

void PrefaceWait::Run() {
  pthread_setname_np(pthread_self(), "preface-wait");
  while (WaitForInput()) CloseLate();
}

bool PrefaceWait::WaitForInput() {
  int timeout_ms = -1;
  {
    MutexLock lock(&mutex_);
    if (stopping_) return false;
    if (!waiting_.empty()) {
      const Nanos left = waiting_.front().until - Clock::Real()->Now();
      timeout_ms = static_cast<int>(
          std::max<int64_t>(0, std::chrono::ceil<std::chrono::milliseconds>(left).count()));
    }
  }
  std::array<epoll_event, kEventsAtOnce> events;
  const int count = epoll_wait(epoll_fd_, events.data(), kEventsAtOnce, timeout_ms);
  for (int i = 0; i < count; ++i) {
    if (events[i].data.fd == wake_fd_) {
      uint64_t ignored;
      [[maybe_unused]] const ssize_t cleared = read(wake_fd_, &ignored, sizeof(ignored));
    } else {
      Look(events[i].data.fd, (events[i].events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0);
    }
  }
  return true;
}

std::list<PrefaceWait::Waiting> PrefaceWait::Take(int fd) {
  std::list<Waiting> taken;
  MutexLock lock(&mutex_);
  const auto it = by_fd_.find(fd);
  taken.splice(taken.end(), waiting_, it->second);
  by_fd_.erase(it);
  epoll_ctl(epoll_fd_, EPOLL_CTL_DEL, fd, nullptr);
  return taken;
}

void PrefaceWait::Look(int fd, bool hung_up) {
  const Said said = LookAt(fd);
  if (said == Said::kNotAll && !hung_up) return;
  const std::list<Waiting> taken = Take(fd);
  if (said == Said::kAll) {
    taken.front().on_preface(fd);
  } else {
    close(fd);
  }
}

void PrefaceWait::CloseLate() {
  const TimePoint now = Clock::Real()->Now();
  MutexLock lock(&mutex_);
  while (!waiting_.empty() && waiting_.front().until <= now) {
    const int fd = waiting_.front().fd;
    by_fd_.erase(fd);
    waiting_.pop_front();
    close(fd);  // and with it, the interest in it
  }
}

}  // namespace tcgemm
