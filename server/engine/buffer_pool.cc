#include "server/engine/buffer_pool.h"

#include <cassert>
#include <iterator>
#include <set>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace tcgemm {
namespace {

constexpr size_t RoundUp(size_t bytes) {
  return (bytes + BufferPool::kAlignment - 1) / BufferPool::kAlignment * BufferPool::kAlignment;
}

constexpr size_t RoundDown(size_t bytes) {
  return bytes / BufferPool::kAlignment * BufferPool::kAlignment;
}

}  // namespace

Lease& Lease::operator=(Lease&& other) noexcept {
  if (this == &other) return *this;
  Reset();
  pool_ = std::exchange(other.pool_, nullptr);
  data_ = std::exchange(other.data_, nullptr);
  bytes_ = std::exchange(other.bytes_, 0);
  holding_ = std::exchange(other.holding_, nullptr);
  return *this;
}

void Lease::Reset() {
  if (pool_ == nullptr) return;
  // Emptied first: returning may run another waiter's callback.
  BufferPool* const pool = std::exchange(pool_, nullptr);
  pool->Return(std::exchange(data_, nullptr), std::exchange(bytes_, 0),
               std::exchange(holding_, nullptr));
}

BufferPool::BufferPool(std::string name, MemoryBlock block)
    : name_(std::move(name)), block_(std::move(block)) {
  const size_t usable = RoundDown(block_.bytes());
  if (usable > 0) free_.emplace(0, usable);
}

BufferPool::~BufferPool() {
  assert(lease_count() == 0 && "a lease outlives its pool");
  MutexLock lock(&mutex_);
  assert(waiters_.empty() && "a waiter outlives its pool");
}

absl::Status BufferPool::CheckSize(size_t bytes) const {
  if (bytes == 0) return absl::InvalidArgumentError("a lease of 0 bytes");
  // Compared before rounding up, which would overflow near SIZE_MAX.
  if (bytes > RoundDown(block_.bytes())) {
    return absl::InvalidArgumentError(absl::StrCat(bytes, " bytes can never be leased: the ", name_,
                                                   " pool has ", block_.bytes(), " in all"));
  }
  return absl::OkStatus();
}

bool BufferPool::MayHold(const std::string& owner, size_t bytes) const {
  if (owner.empty()) return true;
  const auto holding = holdings_.find(owner);
  return holding == holdings_.end() || holding->second + RoundUp(bytes) <= block_.bytes() / 2;
}

bool BufferPool::IsNext(const std::string& owner) const {
  for (const Waiter& waiter : waiters_) {
    const bool same = !owner.empty() && waiter.owner == owner;
    if (same || MayHold(waiter.owner, waiter.bytes)) return false;
  }
  return true;
}

Lease BufferPool::LeaseNow(size_t bytes, const std::string& owner) {
  Lease lease;
  if (!MayHold(owner, bytes)) return lease;
  lease.data_ = Carve(bytes);
  if (lease.data_ == nullptr) return lease;
  lease.pool_ = this;
  lease.bytes_ = bytes;
  if (!owner.empty()) {
    lease.holding_ = &*holdings_.try_emplace(owner, 0).first;
    lease.holding_->second += RoundUp(bytes);
  }
  return lease;
}

absl::StatusOr<Lease> BufferPool::TryLease(size_t bytes, const std::string& owner) {
  if (absl::Status status = CheckSize(bytes); !status.ok()) return status;
  MutexLock lock(&mutex_);
  Lease lease = IsNext(owner) ? LeaseNow(bytes, owner) : Lease();
  if (!lease) {
    return absl::ResourceExhaustedError(absl::StrCat("the ", name_, " pool has no ", bytes,
                                                     " bytes free now (", used_bytes_, " of ",
                                                     block_.bytes(), " in use)"));
  }
  return lease;
}

absl::StatusOr<BufferPool::WaitId> BufferPool::LeaseWhenFree(size_t bytes, OnLease on_lease,
                                                             const std::string& owner) {
  if (absl::Status status = CheckSize(bytes); !status.ok()) return status;
  Lease lease;
  {
    MutexLock lock(&mutex_);
    if (IsNext(owner)) lease = LeaseNow(bytes, owner);
    if (!lease) {
      const WaitId id = next_wait_id_++;
      waiters_.push_back(
          {.id = id, .bytes = bytes, .owner = owner, .on_lease = std::move(on_lease)});
      return id;
    }
  }
  on_lease(std::move(lease));
  return WaitId{0};
}

bool BufferPool::CancelWait(WaitId id) {
  Waiter cancelled;  // destroyed after the lock: its captures may own a lease
  std::list<Granted> granted;
  {
    MutexLock lock(&mutex_);
    auto it = waiters_.begin();
    while (it != waiters_.end() && it->id != id) ++it;
    if (it == waiters_.end()) return false;
    cancelled = std::move(*it);
    waiters_.erase(it);
    // It may have been a large one that held up smaller ones behind it.
    granted = ServeWaiters();
  }
  for (Granted& grant : granted) grant.on_lease(std::move(grant.lease));
  return true;
}

size_t BufferPool::used_bytes() const {
  MutexLock lock(&mutex_);
  return used_bytes_;
}

int64_t BufferPool::lease_count() const {
  MutexLock lock(&mutex_);
  return lease_count_;
}

bool BufferPool::IsWanted() const {
  MutexLock lock(&mutex_);
  return !IsNext("");
}

std::byte* BufferPool::Carve(size_t bytes) {
  const size_t size = RoundUp(bytes);
  for (auto it = free_.begin(); it != free_.end(); ++it) {
    if (it->second < size) continue;
    const size_t offset = it->first;
    const size_t rest = it->second - size;
    free_.erase(it);
    if (rest > 0) free_.emplace(offset + size, rest);
    used_bytes_ += size;
    ++lease_count_;
    return block_.data() + offset;
  }
  return nullptr;
}

void BufferPool::Return(std::byte* data, size_t bytes, LeaseHoldings::value_type* holding) {
  std::list<Granted> granted;
  {
    MutexLock lock(&mutex_);
    size_t offset = static_cast<size_t>(data - block_.data());
    size_t size = RoundUp(bytes);
    used_bytes_ -= size;
    --lease_count_;
    if (holding != nullptr && (holding->second -= size) == 0) {
      holdings_.erase(holdings_.find(holding->first));
    }
    auto next = free_.lower_bound(offset);
    if (next != free_.end() && next->first == offset + size) {
      size += next->second;
      next = free_.erase(next);
    }
    if (next != free_.begin()) {
      const auto before = std::prev(next);
      if (before->first + before->second == offset) {
        offset = before->first;
        size += before->second;
        free_.erase(before);
      }
    }
    free_.emplace(offset, size);
    granted = ServeWaiters();
  }
  for (Granted& grant : granted) grant.on_lease(std::move(grant.lease));
}

std::list<BufferPool::Granted> BufferPool::ServeWaiters() {
  std::list<Granted> granted;
  std::set<std::string> held_back;  // their later ones wait behind their first
  for (auto it = waiters_.begin(); it != waiters_.end();) {
    if (held_back.count(it->owner) > 0 || !MayHold(it->owner, it->bytes)) {
      held_back.insert(it->owner);
      ++it;
      continue;
    }
    Lease lease = LeaseNow(it->bytes, it->owner);
    if (!lease) break;  // those behind it wait too, or a large one would starve
    granted.push_back({std::move(lease), std::move(it->on_lease)});
    it = waiters_.erase(it);
  }
  return granted;
}

}  // namespace tcgemm
