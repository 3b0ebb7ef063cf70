#include "server/engine/buffer_pool.h"

#include <cassert>
#include <iterator>

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
  return *this;
}

void Lease::Reset() {
  if (pool_ == nullptr) return;
  // Emptied first: returning may run another waiter's callback.
  BufferPool* const pool = std::exchange(pool_, nullptr);
  pool->Return(std::exchange(data_, nullptr), std::exchange(bytes_, 0));
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

absl::StatusOr<Lease> BufferPool::TryLease(size_t bytes) {
  if (absl::Status status = CheckSize(bytes); !status.ok()) return status;
  MutexLock lock(&mutex_);
  std::byte* const data = waiters_.empty() ? Carve(bytes) : nullptr;
  if (data == nullptr) {
    return absl::ResourceExhaustedError(absl::StrCat("the ", name_, " pool has no ", bytes,
                                                     " bytes free now (", used_bytes_, " of ",
                                                     block_.bytes(), " in use)"));
  }
  return Lease(this, data, bytes);
}

absl::StatusOr<BufferPool::WaitId> BufferPool::LeaseWhenFree(size_t bytes, OnLease on_lease) {
  if (absl::Status status = CheckSize(bytes); !status.ok()) return status;
  Lease lease;
  {
    MutexLock lock(&mutex_);
    std::byte* const data = waiters_.empty() ? Carve(bytes) : nullptr;
    if (data == nullptr) {
      const WaitId id = next_wait_id_++;
      waiters_.push_back({id, bytes, std::move(on_lease)});
      return id;
    }
    lease = Lease(this, data, bytes);
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

void BufferPool::Return(std::byte* data, size_t bytes) {
  std::list<Granted> granted;
  {
    MutexLock lock(&mutex_);
    size_t offset = static_cast<size_t>(data - block_.data());
    size_t size = RoundUp(bytes);
    used_bytes_ -= size;
    --lease_count_;
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
  while (!waiters_.empty()) {
    Waiter& first = waiters_.front();
    std::byte* const data = Carve(first.bytes);
    if (data == nullptr) break;  // those behind it wait too, or a large one would starve
    granted.push_back({Lease(this, data, first.bytes), std::move(first.on_lease)});
    waiters_.pop_front();
  }
  return granted;
}

}  // namespace tcgemm
