// The side sockets: where a caller fetches the file descriptor of its shared-memory region, since
// gRPC cannot carry one.
//
// A client connects, sends the 16 bytes of its token and gets one message: "OK" with the descriptor
// (SCM_RIGHTS), or words that say why not. Who asks must be the user (SO_PEERCRED) that opened the
// region, and a token is good for one descriptor.
//
// Threads: one per socket accepts, one more speaks with all clients. It never blocks in a client: a
// connection that has not sent its token within kPatience is closed, as are more than kMaxOfUser of
// one user and kMaxConnections in all, at once.
#ifndef TCGEMM_SERVER_RPC_REGION_SOCKET_H_
#define TCGEMM_SERVER_RPC_REGION_SOCKET_H_

#include <sys/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "server/engine/shared_region.h"
#include "server/rpc/unix_listener.h"

namespace tcgemm {

using RegionToken = std::array<uint8_t, 16>;

// Thread-safe.
class RegionSocket {
 public:
  static constexpr Nanos kPatience = std::chrono::seconds(5);
  static constexpr int kMaxConnections = 64;
  static constexpr int kMaxOfUser = 16;

  // Binds and serves `paths` (without "unix:"); none is good too. UnixListener::Bind's errors.
  static absl::StatusOr<std::unique_ptr<RegionSocket>> Start(const std::vector<std::string>& paths,
                                                             Nanos patience = kPatience);
  // Closes every connection, removes the sockets.
  ~RegionSocket();
  // The same; offers may still come and go. Idempotent; not from two threads at once.
  void Stop() ABSL_LOCKS_EXCLUDED(mutex_);
  RegionSocket(const RegionSocket&) = delete;
  RegionSocket& operator=(const RegionSocket&) = delete;

  // The token for which `user` gets the region's descriptor, until Withdraw. INTERNAL when the
  // system has no random bytes.
  absl::StatusOr<RegionToken> Offer(SharedRegionRef region, uid_t user) ABSL_LOCKS_EXCLUDED(mutex_);
  // No descriptor leaves for it any more, and no reference to its region stays. Idempotent.
  void Withdraw(const RegionToken& token) ABSL_LOCKS_EXCLUDED(mutex_);

  // Connections that have not been answered.
  int connections() const ABSL_LOCKS_EXCLUDED(mutex_);

  // Where the region socket of a server's unix socket lies.
  static std::string PathBeside(const std::string& path) { return path + ".regions"; }

 private:
  struct Offered {
    RegionToken token;
    SharedRegionRef region;
    uid_t user;
  };
  struct Connection {
    int fd;
    uid_t user;
    TimePoint until;
    RegionToken token;
    size_t received = 0;
  };

  explicit RegionSocket(int wake_fd, Nanos patience) : wake_fd_(wake_fd), patience_(patience) {}
  void Wake() const;
  void Accept(int fd, uid_t user) ABSL_LOCKS_EXCLUDED(mutex_);
  void Loop() ABSL_LOCKS_EXCLUDED(mutex_);
  // What has come, until the first moment when one must be closed. False when it is time to stop.
  bool WaitForInput(std::vector<int>& ready) ABSL_LOCKS_EXCLUDED(mutex_);
  void CloseLate() ABSL_LOCKS_EXCLUDED(mutex_);
  void Serve(int fd) ABSL_LOCKS_EXCLUDED(mutex_);
  // The descriptor that the token is for, once, to be closed; −1 for a token that is not this
  // user's.
  int Redeem(const RegionToken& token, uid_t user) ABSL_LOCKS_EXCLUDED(mutex_);

  const int wake_fd_;
  const Nanos patience_;
  std::vector<std::unique_ptr<UnixListener>> listeners_;
  mutable Mutex mutex_;
  std::list<Offered> offered_ ABSL_GUARDED_BY(mutex_);
  std::list<Connection> connections_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace tcgemm

#endif  // TCGEMM_SERVER_RPC_REGION_SOCKET_H_
