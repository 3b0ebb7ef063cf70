// What all calls of one server share, and the count of them.
#ifndef TCGEMM_SERVER_RPC_CALL_CONTEXT_H_
#define TCGEMM_SERVER_RPC_CALL_CONTEXT_H_

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>

#include "absl/status/status.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "base/thread_pool.h"
#include "server/engine/engine.h"
#include "server/engine/engine_events.h"
#include "server/rpc/call_timer.h"
#include "server/rpc/peer_key.h"
#include "server/rpc/peer_slots.h"
#include "server/rpc/receive_budget.h"
#include "server/rpc/region_socket.h"
#include "server/rpc/rpc_server.h"
#include "server/rpc/stream_budget.h"
#include "server/security/caller_shares.h"

namespace tcgemm {

// The calls under way. Thread-safe.
class CallCounter {
 public:
  // False, and not counted in, when `limit` calls are under way.
  bool TryStart(int limit) ABSL_LOCKS_EXCLUDED(mutex_);
  void NoteAdmitted() ABSL_LOCKS_EXCLUDED(mutex_);
  void NoteEnded(bool admitted, absl::StatusCode code) ABSL_LOCKS_EXCLUDED(mutex_);
  // True when nothing is under way; false at `deadline`.
  bool WaitIdle(TimePoint deadline) ABSL_LOCKS_EXCLUDED(mutex_);
  CallTotals totals() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  mutable Mutex mutex_;
  CondVar idle_cv_;
  int inflight_ ABSL_GUARDED_BY(mutex_) = 0;
  CallTotals totals_ ABSL_GUARDED_BY(mutex_);
};

// Who is at the other end of a connection of our unix sockets.
struct UnixPeer {
  uid_t uid = 0;
  std::string region_socket;  // beside that socket; empty when there is none
};

// The uid behind each connection of our unix sockets, by the fd in gRPC's "fd:N". Thread-safe.
class PeerUids {
 public:
  void Set(int fd, UnixPeer peer) ABSL_LOCKS_EXCLUDED(mutex_);
  // Nothing when `peer` (gRPC's) did not come over a unix socket.
  std::optional<UnixPeer> Find(const std::string& peer) const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  mutable Mutex mutex_;
  std::unordered_map<int, UnixPeer> peers_ ABSL_GUARDED_BY(mutex_);
};

// What still uses the context although its call may have ended: calls whose job runs on, results
// that gRPC holds slices of. Thread-safe.
class LiveCount {
 public:
  void Add() ABSL_LOCKS_EXCLUDED(mutex_);
  // The last use of the context.
  void Remove() ABSL_LOCKS_EXCLUDED(mutex_);
  void WaitForNone() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  Mutex mutex_;
  CondVar none_cv_;
  int64_t count_ ABSL_GUARDED_BY(mutex_) = 0;
};

// Counts in a LiveCount for as long as it lives.
class LiveHold {
 public:
  explicit LiveHold(LiveCount* count) : count_(count) { count_->Add(); }
  ~LiveHold() { count_->Remove(); }
  LiveHold(const LiveHold&) = delete;
  LiveHold& operator=(const LiveHold&) = delete;

 private:
  LiveCount* const count_;
};

// Calls that live until somebody ends them, which a drain does not wait for. Thread-safe.
class HeldCalls {
 public:
  static constexpr size_t kMaxCalls = 512;

  class Target {
   public:
    virtual ~Target() = default;
    // The server has drained: end. With no lock held.
    virtual void OnDrained() = 0;
  };

  // RESOURCE_EXHAUSTED beyond kMaxCalls; UNAVAILABLE once EndAll was called.
  absl::Status Add(const Target* key, std::weak_ptr<Target> call) ABSL_LOCKS_EXCLUDED(mutex_);
  void Remove(const Target* key) ABSL_LOCKS_EXCLUDED(mutex_);
  // Every call's OnDrained, and no more calls. Idempotent.
  void EndAll() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  Mutex mutex_;
  std::map<const Target*, std::weak_ptr<Target>> calls_ ABSL_GUARDED_BY(mutex_);
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
};

struct CallContext {
  static constexpr int kMaxTransfers = 64;
  static constexpr int kMaxStreams = 64;

  CallContext(const RpcOptions& rpc_options, Engine* the_engine, const Clock* the_clock,
              CallEvents* the_events);

  const RpcOptions options;
  Engine* const engine;
  const Clock* const clock;
  CallEvents* const events;
  const TimePoint started_at;
  std::atomic<bool> ready{false};     // was serving once
  std::atomic<bool> draining{false};  // was serving, and is not any more
  std::atomic<bool> refusing{false};
  CallCounter counter;
  LiveCount live;
  PeerSlots transfer_slots{kMaxTransfers, "uploads and downloads"};
  PeerSlots stream_slots{kMaxStreams, "streams"};
  StreamBudget streams;  // half of the pinned pool
  PeerUids uids;
  CallerShares shares;
  HeldCalls held;
  std::unique_ptr<RegionSocket> region_socket;  // null: no memory is shared
  ReceiveBudget budget;
  CallTimer timer;
  // Last: its tasks use the rest.
  ThreadPool decode_pool;
};

}  // namespace tcgemm

#endif  // TCGEMM_SERVER_RPC_CALL_CONTEXT_H_
