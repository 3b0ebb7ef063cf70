// Memory that the server shares with one caller's process: both map it, and the device copies from
// and to it, so that operands and results cross no socket and no buffer.
//
// It is a memfd of its own, sealed against any change of its size (F_SEAL_SHRINK, GROW, SEAL), so
// that nothing the other process does makes the server's mapping end early (SIGBUS). What it may
// do: write at any time, also while a kernel reads, and punch holes, which read as zeros. Then
// values are wrong, its own alone; no address, size or other caller's byte is ever read from here.
#ifndef TCGEMM_SERVER_ENGINE_SHARED_REGION_H_
#define TCGEMM_SERVER_ENGINE_SHARED_REGION_H_

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/device.h"
#include "server/engine/caller.h"
#include "server/engine/memory_limit.h"

namespace tcgemm {

// Const and so thread-safe, but for the bytes themselves.
class SharedRegion {
 public:
  // A handle, as those of resident matrices, and whose it is.
  struct Identity {
    std::string name;
    Caller owner;
  };

  // `bytes` (≥ 1) rounded up to whole pages. Allocates all of them, zeroed, and registers them with
  // `device`, which must outlive it: a second or more for some GiB. RESOURCE_EXHAUSTED when there
  // is no memory or no file descriptor left, or the pages cannot be pinned; INTERNAL when the
  // device or the system fails otherwise.
  static absl::StatusOr<std::unique_ptr<SharedRegion>> Create(Identity identity, size_t bytes,
                                                              Device* device);
  // Unregisters, unmaps and frees the pages, also those that the other process still maps: it then
  // sees zeros, in memory of its own account. May wait for the device, which must be done with it.
  ~SharedRegion();
  SharedRegion(const SharedRegion&) = delete;
  SharedRegion& operator=(const SharedRegion&) = delete;

  const Identity& identity() const { return identity_; }
  // Page-aligned.
  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  // What the other process maps. Owned by the region.
  int fd() const { return fd_; }

  static size_t RoundUpToPages(size_t bytes);  // 0 when that overflows

 private:
  SharedRegion(Identity identity, int fd, size_t bytes, Device* device)
      : identity_(std::move(identity)), fd_(fd), bytes_(bytes), device_(device) {}
  absl::Status Seal();
  absl::Status Map();

  const Identity identity_;
  const int fd_;
  const size_t bytes_;
  Device* const device_;
  std::byte* data_ = nullptr;
  bool registered_ = false;
};

// A reference: while there is one, the region stays mapped and registered.
using SharedRegionRef = std::shared_ptr<SharedRegion>;

// Whether this system may share memory: FAILED_PRECONDITION under strict overcommit
// (vm.overcommit_memory = 2), where the page for a hole that a client punched may be refused to
// whoever touches it next, the server too, with SIGBUS.
absl::Status CheckSharedMemoryAllowed(const FileReader& read_file);

}  // namespace tcgemm

#endif  // TCGEMM_SERVER_ENGINE_SHARED_REGION_H_
