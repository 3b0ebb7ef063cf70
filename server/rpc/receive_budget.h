// Who may receive a payload now: a fixed number of equal shares, given out first come, first
// served.
//
// gRPC tells a message's size only when all of it is in memory, so a share is the largest message
// allowed (docs/adr/0007). It is held from the first read to the end of the copy: microseconds for
// small requests, so a few shares serve many callers. Policy only: no thread, and time is passed
// in.
#ifndef TCGEMM_SERVER_RPC_RECEIVE_BUDGET_H_
#define TCGEMM_SERVER_RPC_RECEIVE_BUDGET_H_

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"

namespace tcgemm {

// Thread-safe.
class ReceiveBudget {
 public:
  using WaitId = uint64_t;
  // The waiter holds a share now. Runs on the thread that returned a share, with no lock
  // held; it must only start a read.
  using OnTurn = std::function<void()>;

  // `shares` ≥ 1. One peer may hold at most half of them (at least one), so that senders who stall
  // cannot lock out everybody else.
  explicit ReceiveBudget(int shares);

  struct Outcome {
    bool granted = false;
    WaitId wait_id = 0;  // set when not granted: `on_turn` will run, unless CancelWait
  };
  // Takes a share if one is free for `peer` and nobody waits before it; queues otherwise.
  Outcome Take(const std::string& peer, OnTurn on_turn) ABSL_LOCKS_EXCLUDED(mutex_);
  // True: `on_turn` has not run and will not.
  bool CancelWait(WaitId id) ABSL_LOCKS_EXCLUDED(mutex_);
  // Gives a share of `peer` back; the next in line that may have it gets it.
  void Return(const std::string& peer) ABSL_LOCKS_EXCLUDED(mutex_);

  int shares() const { return shares_; }
  int used() const ABSL_LOCKS_EXCLUDED(mutex_);
  int64_t waiting() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Waiter {
    WaitId id;
    std::string peer;
    OnTurn on_turn;
  };

  bool MayTake(const std::string& peer) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TakeShare(const std::string& peer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const int shares_;
  const int shares_of_one_peer_;
  mutable Mutex mutex_;
  int used_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<std::string, int> used_by_ ABSL_GUARDED_BY(mutex_);  // no zeros
  std::list<Waiter> waiters_ ABSL_GUARDED_BY(mutex_);
  WaitId next_id_ ABSL_GUARDED_BY(mutex_) = 1;
};

}  // namespace tcgemm

#endif  // TCGEMM_SERVER_RPC_RECEIVE_BUDGET_H_
