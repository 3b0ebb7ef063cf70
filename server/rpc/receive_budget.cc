#include "server/rpc/receive_budget.h"

#include <algorithm>
#include <utility>

namespace tcgemm {

ReceiveBudget::ReceiveBudget(int shares)
    : shares_(std::max(1, shares)), shares_of_one_peer_(std::max(1, (shares_ + 1) / 2)) {}

ReceiveBudget::Outcome ReceiveBudget::Take(const std::string& peer, OnTurn on_turn) {
  MutexLock lock(&mutex_);
  // A waiter that is held back by its peer's limit alone does not hold back others.
  const bool someone_before = std::any_of(
      waiters_.begin(), waiters_.end(), [&](const Waiter& waiter) { return waiter.peer == peer; });
  if (!someone_before && MayTake(peer)) {
    TakeShare(peer);
    return {.granted = true};
  }
  const WaitId id = next_id_++;
  waiters_.push_back({id, peer, std::move(on_turn)});
  return {.wait_id = id};
}

bool ReceiveBudget::CancelWait(WaitId id) {
  MutexLock lock(&mutex_);
  const auto it = std::find_if(waiters_.begin(), waiters_.end(),
                               [&](const Waiter& waiter) { return waiter.id == id; });
  if (it == waiters_.end()) return false;
  waiters_.erase(it);
  return true;
}

void ReceiveBudget::Return(const std::string& peer) {
  OnTurn on_turn;
  {
    MutexLock lock(&mutex_);
    --used_;
    const auto held = used_by_.find(peer);
    if (--held->second == 0) used_by_.erase(held);
    auto next = waiters_.begin();
    while (next != waiters_.end() && !MayTake(next->peer)) ++next;
    if (next == waiters_.end()) return;
    TakeShare(next->peer);
    on_turn = std::move(next->on_turn);
    waiters_.erase(next);
  }
  on_turn();
}

int ReceiveBudget::used() const {
  MutexLock lock(&mutex_);
  return used_;
}

int64_t ReceiveBudget::waiting() const {
  MutexLock lock(&mutex_);
  return static_cast<int64_t>(waiters_.size());
}

bool ReceiveBudget::MayTake(const std::string& peer) const {
  if (used_ >= shares_) return false;
  const auto held = used_by_.find(peer);
  return held == used_by_.end() || held->second < shares_of_one_peer_;
}

void ReceiveBudget::TakeShare(const std::string& peer) {
  ++used_;
  ++used_by_[peer];
}

}  // namespace tcgemm
