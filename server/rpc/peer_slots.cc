#include "server/rpc/peer_slots.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace tcgemm {

PeerSlots::Slot& PeerSlots::Slot::operator=(Slot&& other) noexcept {
  if (this == &other) return *this;
  Reset();
  slots_ = std::exchange(other.slots_, nullptr);
  peer_ = std::move(other.peer_);
  return *this;
}

void PeerSlots::Slot::Reset() {
  if (slots_ != nullptr) std::exchange(slots_, nullptr)->Return(peer_);
}

absl::StatusOr<PeerSlots::Slot> PeerSlots::Take(const std::string& peer) {
  MutexLock lock(&mutex_);
  if (used_ >= slots_) {
    return absl::ResourceExhaustedError(absl::StrCat("already ", used_, " ", what_, " under way"));
  }
  int& held = used_by_[peer];
  if (held >= slots_ / 2) {
    return absl::ResourceExhaustedError(absl::StrCat("this peer has ", held, " of the ", slots_,
                                                     " ", what_,
                                                     " that may be under way, and no "
                                                     "one has more than half"));
  }
  ++held;
  ++used_;
  Slot slot;
  slot.slots_ = this;
  slot.peer_ = peer;
  return slot;
}

void PeerSlots::Return(const std::string& peer) {
  MutexLock lock(&mutex_);
  --used_;
  const auto held = used_by_.find(peer);
  if (--held->second == 0) used_by_.erase(held);
}

}  // namespace tcgemm
