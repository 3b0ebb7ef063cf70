// The shared-memory regions, by owner and handle, in one budget, and the thread that makes them and
// takes them down: both touch, pin and free every page, which no serving thread may wait for.
//
// A region can be found from the moment it is open until Close; its share of the budget comes back,
// and the thread takes it down before it makes another, when the last SharedRegionRef has gone too:
// jobs hold one while the device may touch it.
#ifndef TCGEMM_SERVER_ENGINE_SHARED_REGION_STORE_H_
#define TCGEMM_SERVER_ENGINE_SHARED_REGION_STORE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "server/engine/caller.h"
#include "server/engine/resident_store.h"
#include "server/engine/shared_region.h"

namespace tcgemm {

struct SharedRegionLimits {
  size_t total_bytes = 0;   // of all regions; 0: there are none
  size_t caller_bytes = 0;  // of one caller's; 0: as many as of all
};

// Thread-safe. Every SharedRegionRef must be gone before the store.
class SharedRegionStore {
 public:
  static constexpr size_t kMaxRegionBytes = size_t{16} << 30;
  // Regions that are open, opening or in use.
  static constexpr int kMaxRegions = 256;
  static constexpr int kMaxRegionsOfCaller = 64;
  // Of those: waiting for the thread.
  static constexpr int kMaxOpening = 16;
  static constexpr int kMaxOpeningOfCaller = 4;

  using OpenId = uint64_t;
  // On the store's thread, with no lock held; must only enqueue.
  using OnOpen = std::function<void(absl::StatusOr<SharedRegionRef>)>;
  using Random = ResidentStore::Random;

  // `device` must outlive it. Starts the thread unless there is no budget.
  SharedRegionStore(const SharedRegionLimits& limits, Device* device,
                    Random random = ResidentStore::SystemRandom());
  // Ends the opens that wait with UNAVAILABLE, takes down what is left, joins.
  ~SharedRegionStore();
  SharedRegionStore(const SharedRegionStore&) = delete;
  SharedRegionStore& operator=(const SharedRegionStore&) = delete;

  // Room for the region is reserved at once: INVALID_ARGUMENT for no byte, RESOURCE_EXHAUSTED, with
  // the value and the limit, when a limit is reached. Otherwise `on_open` is called, once: with a
  // region that its caller may find, or SharedRegion::Create's error.
  absl::StatusOr<OpenId> Open(const Caller& caller, size_t bytes, OnOpen on_open)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // True: the region will not be made, and `on_open` was not and will not be called.
  bool CancelOpen(OpenId id) ABSL_LOCKS_EXCLUDED(mutex_);
  // NOT_FOUND when it was never opened, was closed, or is another caller's.
  absl::StatusOr<SharedRegionRef> Find(const Caller& caller, const std::string& name) const
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Nobody finds it from now on. Idempotent.
  void Close(const SharedRegionRef& region) ABSL_LOCKS_EXCLUDED(mutex_);

  // The largest region that there is ever room for.
  size_t largest_bytes() const;
  size_t total_bytes() const { return limits_.total_bytes; }
  // Of regions that are open, opening or not taken down yet.
  size_t used_bytes() const ABSL_LOCKS_EXCLUDED(mutex_);
  // That are open, opening or in use.
  int regions() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Opening {
    OpenId id = 0;
    Caller caller;
    size_t bytes = 0;
    OnOpen on_open;
  };
  struct Share {
    size_t bytes = 0;
    int regions = 0;
    int opening = 0;
  };

  void Loop() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<SharedRegionRef> Create(const Opening& opening) ABSL_LOCKS_EXCLUDED(mutex_);
  void Finish(const Opening& opening, absl::StatusOr<SharedRegionRef> region)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void TakeDown(std::unique_ptr<SharedRegion> region) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status CheckRoom(const Share& share, size_t bytes) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndOpening(const Opening& opening) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ReturnShare(const Caller& caller, size_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const SharedRegionLimits limits_;
  Device* const device_;
  const Random random_;
  mutable Mutex mutex_;
  CondVar work_cv_;
  std::list<Opening> opening_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<SharedRegion>> left_
      ABSL_GUARDED_BY(mutex_);                                           // nobody refers to them
  std::map<std::string, SharedRegionRef> open_ ABSL_GUARDED_BY(mutex_);  // by name
  std::map<std::string, Share> shares_ ABSL_GUARDED_BY(mutex_);          // by caller
  size_t leaving_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  Share all_ ABSL_GUARDED_BY(mutex_);
  OpenId next_id_ ABSL_GUARDED_BY(mutex_) = 1;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: it uses the rest
};

}  // namespace tcgemm

#endif  // TCGEMM_SERVER_ENGINE_SHARED_REGION_STORE_H_
