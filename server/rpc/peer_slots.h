// So many of one kind of call at once, and at most half of them for one peer: who opens calls and
// says nothing locks out itself, not the others.
#ifndef TCGEMM_SERVER_RPC_PEER_SLOTS_H_
#define TCGEMM_SERVER_RPC_PEER_SLOTS_H_

#include <string>
#include <unordered_map>

#include "absl/status/statusor.h"
#include "base/mutex.h"

namespace tcgemm {

// Thread-safe.
class PeerSlots {
 public:
  // Given back when it is destroyed or reset; must not outlive the slots. Move-only.
  class Slot {
   public:
    Slot() = default;
    Slot(Slot&& other) noexcept { *this = std::move(other); }
    Slot& operator=(Slot&& other) noexcept;
    ~Slot() { Reset(); }
    void Reset();

   private:
    friend class PeerSlots;
    PeerSlots* slots_ = nullptr;
    std::string peer_;
  };

  // `slots` ≥ 2 of what messages call `what`, in the plural.
  PeerSlots(int slots, const char* what) : slots_(slots), what_(what) {}

  // RESOURCE_EXHAUSTED, naming number and limit. `peer`: PeerKey (peer_key.h).
  absl::StatusOr<Slot> Take(const std::string& peer) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void Return(const std::string& peer) ABSL_LOCKS_EXCLUDED(mutex_);

  const int slots_;
  const char* const what_;
  Mutex mutex_;
  int used_ ABSL_GUARDED_BY(mutex_) = 0;
  std::unordered_map<std::string, int> used_by_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tcgemm

#endif  // TCGEMM_SERVER_RPC_PEER_SLOTS_H_
