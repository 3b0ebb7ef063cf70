// Leases of variable size from one block that was allocated, and touched, at start.
#ifndef TCGEMM_SERVER_ENGINE_BUFFER_POOL_H_
#define TCGEMM_SERVER_ENGINE_BUFFER_POOL_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "kernels/device.h"

namespace tcgemm {

class BufferPool;

// What the owners of leases hold, in bytes as carved.
using LeaseHoldings = std::unordered_map<std::string, size_t>;

// A piece of a pool, returned when the lease is destroyed or reset. Move-only; its holder may use
// it from any thread, one at a time. Must not outlive its pool.
class Lease {
 public:
  Lease() = default;
  Lease(Lease&& other) noexcept { *this = std::move(other); }
  Lease& operator=(Lease&& other) noexcept;
  ~Lease() { Reset(); }

  // Null when empty. Aligned to BufferPool::kAlignment.
  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }  // as asked for
  explicit operator bool() const { return data_ != nullptr; }
  void Reset();

 private:
  friend class BufferPool;
  BufferPool* pool_ = nullptr;
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
  LeaseHoldings::value_type* holding_ = nullptr;  // the pool's; null: nobody's
};

// Thread-safe. First fit over an address-ordered free map, neighbours merged on return.
//
// A lease may have an owner. Who has one gets no other that would make it more than half of the
// pool: it waits until its own come back, and nobody waits behind it for that. So an owner whose
// leases do not come back (results that nobody reads) leaves half of the pool to the others, unless
// a single lease is larger.
class BufferPool {
 public:
  static constexpr size_t kAlignment = 4096;
  using WaitId = uint64_t;
  using OnLease = std::function<void(absl::StatusOr<Lease>)>;

  BufferPool(std::string name, MemoryBlock block);
  ~BufferPool();  // all leases must be back and no waiter left
  BufferPool(const BufferPool&) = delete;
  BufferPool& operator=(const BufferPool&) = delete;

  // RESOURCE_EXHAUSTED when no piece is free now (for `owner`; empty: nobody's) or others wait
  // before it; INVALID_ARGUMENT when `bytes` could never be leased (more than the whole pool, or
  // zero).
  absl::StatusOr<Lease> TryLease(size_t bytes, const std::string& owner = "")
      ABSL_LOCKS_EXCLUDED(mutex_);

  // First come, first served: calls `on_lease` with a lease as soon as the piece is free, perhaps
  // before this returns (then WaitId is 0), on the thread that returned the piece, with no lock
  // held; it must only enqueue. INVALID_ARGUMENT, with `on_lease` not called, as above.
  absl::StatusOr<WaitId> LeaseWhenFree(size_t bytes, OnLease on_lease,
                                       const std::string& owner = "") ABSL_LOCKS_EXCLUDED(mutex_);
  // True: the waiter is gone and its `on_lease` was not and will not be called. Those that waited
  // behind it may get their leases now, on this thread.
  bool CancelWait(WaitId id) ABSL_LOCKS_EXCLUDED(mutex_);

  size_t total_bytes() const { return block_.bytes(); }
  // In whole units of kAlignment, as carved.
  size_t used_bytes() const ABSL_LOCKS_EXCLUDED(mutex_);
  int64_t lease_count() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Somebody waits whom its own leases do not hold back: others' must come back.
  bool IsWanted() const ABSL_LOCKS_EXCLUDED(mutex_);
  const std::string& name() const { return name_; }

 private:
  friend class Lease;
  struct Waiter {
    WaitId id;
    size_t bytes;
    std::string owner;
    OnLease on_lease;
  };
  struct Granted {
    Lease lease;
    OnLease on_lease;
  };

  absl::Status CheckSize(size_t bytes) const;
  // Whether it stays within its half, or has nothing else.
  bool MayHold(const std::string& owner, size_t bytes) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Nobody waits before it who is not held back by what it has itself.
  bool IsNext(const std::string& owner) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Empty when it may have none now.
  Lease LeaseNow(size_t bytes, const std::string& owner) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // First fit; null when no free piece is large enough.
  std::byte* Carve(size_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Return(std::byte* data, size_t bytes, LeaseHoldings::value_type* holding)
      ABSL_LOCKS_EXCLUDED(mutex_);
  std::list<Granted> ServeWaiters() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string name_;
  const MemoryBlock block_;
  mutable Mutex mutex_;
  std::map<size_t, size_t> free_ ABSL_GUARDED_BY(mutex_);  // offset → bytes
  std::list<Waiter> waiters_ ABSL_GUARDED_BY(mutex_);
  WaitId next_wait_id_ ABSL_GUARDED_BY(mutex_) = 1;
  LeaseHoldings holdings_ ABSL_GUARDED_BY(mutex_);  // no zeros
  size_t used_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t lease_count_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace tcgemm

#endif  // TCGEMM_SERVER_ENGINE_BUFFER_POOL_H_
