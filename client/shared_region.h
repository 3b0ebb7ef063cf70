// Memory that this process shares with a server on the same machine (docs/SHARED_MEMORY.md), and
// the room in it.
//
// It lives as long as this object, while the server holds it: a server that drains or dies takes it
// away. The memory itself stays mapped here until the end, so that no pointer into it ever faults;
// what the server has let go of reads as zeros.
#ifndef TCGEMM_CLIENT_SHARED_REGION_H_
#define TCGEMM_CLIENT_SHARED_REGION_H_

#include <grpcpp/channel.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "matrix/dtype.h"
#include "matrix/matrix_view.h"

namespace tcgemm::client {

// Thread-safe, but for the bytes themselves.
class SharedRegion {
 public:
  // Of what Allocate hands out: a cache line, and more than any device asks for.
  static constexpr size_t kAlignment = 256;

  struct Options {
    std::string server;  // of the channel, "unix:/path"
    size_t bytes = 0;    // rounded up to whole pages
    Nanos timeout{0};    // > 0, of opening it
  };

  // Asks the server at the other end of `channel` for a region and maps it. INVALID_ARGUMENT for an
  // address that is no unix socket, or no bytes; UNIMPLEMENTED when the server shares no memory;
  // RESOURCE_EXHAUSTED when a budget is used up; DEADLINE_EXCEEDED; PERMISSION_DENIED when the side
  // socket refuses; FAILED_PRECONDITION when it is not there, as in a container that sees only the
  // server's main socket; INTERNAL when what came is not what was promised.
  static absl::StatusOr<std::unique_ptr<SharedRegion>> Open(
      const std::shared_ptr<grpc::Channel>& channel, const Options& options);
  // Ends the call and unmaps: nobody may look into it any more. Waits up to a second for the
  // server.
  ~SharedRegion();
  SharedRegion(const SharedRegion&) = delete;
  SharedRegion& operator=(const SharedRegion&) = delete;

  // OK while the server holds the region; else how its call ended.
  absl::Status status() const;
  const std::string& name() const { return name_; }
  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }

  // Room for `bytes` (≥ 1), until Free. RESOURCE_EXHAUSTED, saying how much is free, when there is
  // no piece so large.
  absl::StatusOr<absl::Span<std::byte>> Allocate(size_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);
  // A dense matrix of undefined elements: Free(view.data).
  absl::StatusOr<MutableMatrixView> AllocateMatrix(int64_t rows, int64_t cols, DType dtype)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // What one of them returned; null does nothing.
  void Free(const void* data) ABSL_LOCKS_EXCLUDED(mutex_);
  size_t free_bytes() const ABSL_LOCKS_EXCLUDED(mutex_);

  // Whether all of [data, data + bytes) lies in the region.
  bool Contains(const void* data, size_t bytes) const;
  size_t OffsetOf(const void* data) const {
    return static_cast<size_t>(static_cast<const std::byte*>(data) - data_);
  }

 private:
  class Hold;

  SharedRegion(std::unique_ptr<Hold> hold, std::string name, std::byte* data, size_t bytes);

  const std::unique_ptr<Hold> hold_;
  const std::string name_;
  std::byte* const data_;
  const size_t bytes_;
  mutable Mutex mutex_;
  std::map<size_t, size_t> free_ ABSL_GUARDED_BY(mutex_);   // offset → bytes; no two touch
  std::map<size_t, size_t> taken_ ABSL_GUARDED_BY(mutex_);  // the same
};

}  // namespace tcgemm::client

#endif  // TCGEMM_CLIENT_SHARED_REGION_H_
