// Memory that gRPC reads slices of, without a copy, until it lets go of the last one.
#ifndef TCGEMM_SERVER_RPC_SLICE_OWNER_H_
#define TCGEMM_SERVER_RPC_SLICE_OWNER_H_

#include <grpcpp/support/slice.h>

#include <atomic>
#include <cstddef>
#include <utility>

namespace tcgemm {

// Owns a T, together with the slices it made: the last of them to go destroys the T, on whichever
// thread that is. Counted by hand: ThreadSanitizer sees this count, but not how gRPC hands slices
// from thread to thread. Slices may go on any thread; the rest is not thread-safe.
template <typename T>
class SliceOwner {
 public:
  template <typename... Args>
  explicit SliceOwner(Args&&... args) : shared_(new Shared{T{std::forward<Args>(args)...}}) {}
  ~SliceOwner() { Unref(shared_); }
  SliceOwner(const SliceOwner&) = delete;
  SliceOwner& operator=(const SliceOwner&) = delete;

  T* operator->() const { return &shared_->owned; }

  // `bytes` bytes at `data`, which the T keeps alive.
  grpc::Slice MakeSlice(std::byte* data, size_t bytes) const {
    shared_->references.fetch_add(1, std::memory_order_relaxed);
    return grpc::Slice(
        data, bytes, [](void* shared) { Unref(static_cast<Shared*>(shared)); }, shared_);
  }

 private:
  struct Shared {
    T owned;
    std::atomic<int> references = 1;
  };
  static void Unref(Shared* shared) {
    if (shared->references.fetch_sub(1, std::memory_order_acq_rel) == 1) delete shared;
  }

  Shared* const shared_;
};

}  // namespace tcgemm

#endif  // TCGEMM_SERVER_RPC_SLICE_OWNER_H_
