// Where connections of unix sockets wait until their client has said what every HTTP/2 client says
// at once: the connection preface and its SETTINGS (RFC 9113, section 3.4).
//
// gRPC bounds that for TCP (GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS), but not for a descriptor given
// to AddInsecureChannelFromFd: who connects there and says nothing would stay for ever. What has
// come is looked at and left in the socket, so that gRPC reads all of it.
#ifndef TCGEMM_SERVER_RPC_PREFACE_WAIT_H_
#define TCGEMM_SERVER_RPC_PREFACE_WAIT_H_

#include <functional>
#include <list>
#include <memory>
#include <thread>
#include <unordered_map>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/mutex.h"

namespace tcgemm {

// Thread-safe.
class PrefaceWait {
 public:
  // Takes the descriptor. Runs on the thread of the wait.
  using OnPreface = std::function<void(int fd)>;

  // A connection that has not said it all within `patience` is closed. UNAVAILABLE when there is no
  // descriptor left.
  static absl::StatusOr<std::unique_ptr<PrefaceWait>> Start(Nanos patience);
  ~PrefaceWait();
  PrefaceWait(const PrefaceWait&) = delete;
  PrefaceWait& operator=(const PrefaceWait&) = delete;

  // `fd` is a connected, non-blocking stream socket; it is this one's until `on_preface` gets it.
  void Add(int fd, OnPreface on_preface) ABSL_LOCKS_EXCLUDED(mutex_);
  // Closes those that wait; what is added later is closed at once. No OnPreface runs after it
  // returned. Idempotent; not from two threads at once.
  void Stop() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Waiting {
    int fd;
    TimePoint until;
    OnPreface on_preface;
  };

  PrefaceWait(Nanos patience, int epoll_fd, int wake_fd)
      : patience_(patience), epoll_fd_(epoll_fd), wake_fd_(wake_fd) {}
  void Wake() const;
  void Run() ABSL_LOCKS_EXCLUDED(mutex_);
  // False when it is time to stop.
  bool WaitForInput() ABSL_LOCKS_EXCLUDED(mutex_);
  void Look(int fd, bool hung_up) ABSL_LOCKS_EXCLUDED(mutex_);
  void CloseLate() ABSL_LOCKS_EXCLUDED(mutex_);
  // Takes it out of the wait.
  std::list<Waiting> Take(int fd) ABSL_LOCKS_EXCLUDED(mutex_);

  const Nanos patience_;
  const int epoll_fd_;
  const int wake_fd_;
  Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::list<Waiting> waiting_ ABSL_GUARDED_BY(mutex_);  // oldest first
  std::unordered_map<int, std::list<Waiting>::iterator> by_fd_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace tcgemm

#endif  // TCGEMM_SERVER_RPC_PREFACE_WAIT_H_
