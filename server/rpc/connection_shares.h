// How many connections each listener may have open.
//
// All listeners share the process's file descriptors. Half of what there is for connections is kept
// for the listeners in equal shares, from which the others cannot push one out; the other half
// goes to who comes first. gRPC does not tell when it closes a connection, so each is remembered by
// its descriptor and its socket's inode: a descriptor that is given out again, or that no longer
// is that socket, was closed.
#ifndef TCGEMM_SERVER_RPC_CONNECTION_SHARES_H_
#define TCGEMM_SERVER_RPC_CONNECTION_SHARES_H_

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"

namespace tcgemm {

struct ConnectionLimit {
  int connections = 0;  // of all listeners together
  int open_files = 0;   // the process's limit that they come from, for messages
};

// Thread-safe.
class ConnectionShares {
 public:
  // How often one listener's refusals are worth a line in the log.
  static constexpr Nanos kLogInterval = std::chrono::seconds(10);
  // Looking at every connection, to find those that were closed, happens no more often than that.
  static constexpr Nanos kSweepInterval = std::chrono::milliseconds(100);

  // `listeners`: what messages call them. `clock` outlives this.
  ConnectionShares(std::vector<std::string> listeners, const ConnectionLimit& limit,
                   const Clock* clock);

  // Counts `fd`, a socket that `listener` has just accepted. False, and not counted, when there is
  // no room for it: then the caller closes it.
  bool Admit(size_t listener, int fd) ABSL_LOCKS_EXCLUDED(mutex_);
  // A connection of `listener` was closed at once, for this or for another reason: the line that
  // the log should have about it and about those since the last one, if it is time for one.
  std::optional<std::string> OnRefused(size_t listener) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Connection {
    size_t listener;
    ino_t inode;
  };
  struct Listener {
    std::string name;
    int open = 0;  // and not known to be closed
    int64_t refused_since_line = 0;
    std::optional<TimePoint> last_line;
  };
  bool HasRoom(size_t listener) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ForgetClosed() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const ConnectionLimit limit_;
  const int share_;  // of one listener, whatever the others have
  const Clock* const clock_;
  mutable Mutex mutex_;
  std::vector<Listener> listeners_ ABSL_GUARDED_BY(mutex_);
  std::unordered_map<int, Connection> connections_ ABSL_GUARDED_BY(mutex_);  // by descriptor
  std::optional<TimePoint> swept_at_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tcgemm

#endif  // TCGEMM_SERVER_RPC_CONNECTION_SHARES_H_
