// The matrices that stay on the server, by owner and handle, in one budget of device memory.
//
// A handle is the name that its owner chose, or 32 random hex digits. Names are each caller's own:
// two callers may use the same one, and neither learns of the other's. Preloaded names are
// everybody's: readable by all, deletable by none, and no caller may take one.
//
// A matrix leaves by Delete, when its time to live is over, when nobody continued its upload for
// kUnfinishedLife, or when Create needs room: then the complete ones that nobody uses go, least
// recently used first. Whoever holds a ResidentRef keeps the matrix's memory; what has left is
// NOT_FOUND for everybody else, and its memory returns when the last reference goes. So what
// ResidentRefs hold counts against the budget even after it left.
#ifndef TCGEMM_SERVER_ENGINE_RESIDENT_STORE_H_
#define TCGEMM_SERVER_ENGINE_RESIDENT_STORE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "server/engine/buffer_pool.h"
#include "server/engine/resident_matrix.h"

namespace tcgemm {

struct ResidentSpec {
  std::string name;  // empty: a random handle
  int64_t rows = 0;  // ≥ 1, as are cols
  int64_t cols = 0;
  DType dtype = DType::kBf16;
  Nanos ttl{0};          // from its creation; 0: none
  bool product = false;  // filled by a product
};

struct ResidentStats {
  int64_t matrices = 0;  // that have not left
  size_t bytes = 0;      // of those, rows padded
};

// Thread-safe. Every ResidentRef must be gone before the store.
class ResidentStore {
 public:
  static constexpr int64_t kMaxMatrices = 4096;
  static constexpr size_t kMaxNameBytes = 128;
  static constexpr Nanos kUnfinishedLife = std::chrono::minutes(10);
  // Fills 16 bytes with what nobody can guess; INTERNAL when the system has none.
  using Random = std::function<absl::Status(uint8_t (&bytes)[16])>;
  static Random SystemRandom();  // getrandom(2)

  // `block`: device memory, empty for no budget. Rows are padded to `pitch_alignment` elements.
  ResidentStore(MemoryBlock block, int64_t pitch_alignment, const Clock* clock,
                Random random = SystemRandom());
  ~ResidentStore();
  ResidentStore(const ResidentStore&) = delete;
  ResidentStore& operator=(const ResidentStore&) = delete;

  // INVALID_ARGUMENT for a name that is no name (letters, digits and . _ - / : only, at most
  // kMaxNameBytes, not shaped like a random handle); ALREADY_EXISTS when it is taken;
  // RESOURCE_EXHAUSTED, with the value and the limit, when there is no room or no number left.
  absl::StatusOr<ResidentRef> Create(const Caller& caller, const ResidentSpec& spec)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // The same, for everybody; the name must not be empty.
  absl::StatusOr<ResidentRef> CreatePreloaded(const ResidentSpec& spec) ABSL_LOCKS_EXCLUDED(mutex_);
  // A matrix that no handle names and nobody else finds: it goes with its last reference.
  // RESOURCE_EXHAUSTED as above.
  absl::StatusOr<ResidentRef> CreateTemporary(const Caller& caller, const ResidentSpec& spec)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // The caller's own, or preloaded. NOT_FOUND when it is missing, deleted, expired, evicted or
  // another caller's. Counts as a use.
  absl::StatusOr<ResidentRef> Find(const Caller& caller, const std::string& handle)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Counts as a use: of an upload that goes on. False when the matrix has left.
  bool Touch(const ResidentRef& matrix) ABSL_LOCKS_EXCLUDED(mutex_);
  // NOT_FOUND as above; PERMISSION_DENIED for a preloaded one.
  absl::Status Delete(const Caller& caller, const std::string& handle) ABSL_LOCKS_EXCLUDED(mutex_);
  // Removes this very matrix, if it has not left.
  void Drop(const ResidentRef& matrix) ABSL_LOCKS_EXCLUDED(mutex_);
  // The caller's own and the preloaded ones, by handle.
  std::vector<ResidentRef> List(const Caller& caller) ABSL_LOCKS_EXCLUDED(mutex_);

  ResidentStats stats() ABSL_LOCKS_EXCLUDED(mutex_);
  // The budget.
  const BufferPool& pool() const { return pool_; }

 private:
  struct Entry {
    ResidentRef matrix;
    TimePoint expires_at = kInfiniteFuture;
    TimePoint used_at;
  };
  // Owner (empty: preloaded) and handle.
  using Key = std::pair<std::string, std::string>;

  static Key KeyOf(const ResidentMatrix& matrix);
  absl::StatusOr<ResidentRef> CreateAs(ResidentMatrix::Identity identity, const ResidentSpec& spec)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // The room and the matrix in it, in no map yet.
  absl::StatusOr<ResidentRef> Make(ResidentMatrix::Identity identity, const ResidentSpec& spec)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<std::string> RandomHandle() const;
  bool MayEvict(const Entry& entry) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The least recently used one; false when none may go.
  bool EvictOne() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<Lease> LeaseRoom(size_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void DropExpired() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // By the caller's handle: its own before the preloaded one.
  std::map<Key, Entry>::iterator Lookup(const Caller& caller, const std::string& handle)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const int64_t pitch_alignment_;
  const Clock* const clock_;
  const Random random_;
  BufferPool pool_;
  Mutex mutex_;
  std::map<Key, Entry> entries_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tcgemm

#endif  // TCGEMM_SERVER_ENGINE_RESIDENT_STORE_H_
