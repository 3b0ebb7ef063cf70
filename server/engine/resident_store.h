// The matrices that stay on the server, by owner and handle, in one budget of device memory.
//
// A handle is the name that its owner chose, or 32 random hex digits. Names are each caller's own:
// two callers may use the same one, and neither learns of the other's. Preloaded names are
// everybody's: readable by all, deletable by none, and no caller may take one.
//
// A matrix leaves by Delete, when its time to live is over, when nobody continued its upload for
// kUnfinishedLife (and at most a tenth of that more), or when Create needs room: then those that
// nobody uses, uploads that are going on aside, go least recently used first: those of
// callers who hold more than the one who needs room would hold, then that one's own, then those of
// others that nobody used for kRecentUse: a large matrix does not push out what smaller callers
// work with. A caller who would hold more than its share makes room among its own. Whoever holds a
// ResidentRef keeps the matrix's memory; what has left is NOT_FOUND for everybody else, and its
// memory returns when the last reference goes. So what ResidentRefs hold counts against the budget
// even after it left.
#ifndef TCGEMM_SERVER_ENGINE_RESIDENT_STORE_H_
#define TCGEMM_SERVER_ENGINE_RESIDENT_STORE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "server/engine/buffer_pool.h"
#include "server/engine/due_order.h"
#include "server/engine/resident_matrix.h"

namespace tcgemm {

struct ResidentSpec {
  std::string name;  // empty: a random handle
  int64_t rows = 0;  // ≥ 1, as are cols
  int64_t cols = 0;
  DType dtype = DType::kBf16;
  Nanos ttl{0};              // from its creation; 0: none
  bool product = false;      // filled by a product
  std::string creation_key;  // with a name; see Create
};

struct ResidentStats {
  int64_t matrices = 0;  // that have not left
  size_t bytes = 0;      // of those, rows padded
};

struct ResidentPage {
  std::vector<ResidentRef> matrices;  // by handle
  bool more = false;                  // there are others behind the last one
};

// Thread-safe. Every ResidentRef must be gone before the store.
class ResidentStore {
 public:
  static constexpr int64_t kMaxMatrices = 4096;
  static constexpr size_t kMaxNameBytes = 128;
  static constexpr Nanos kUnfinishedLife = std::chrono::minutes(10);
  // An upload is going on while bytes of it came within kStalledUpload, and on the whole no fewer
  // than kSlowestUpload bytes in a second, from kStalledUpload after its begin on: a byte now and
  // then does not keep the room.
  static constexpr Nanos kStalledUpload = std::chrono::seconds(30);
  static constexpr size_t kSlowestUpload = size_t{1} << 20;
  static constexpr Nanos kRecentUse = std::chrono::minutes(1);
  // Fills 16 bytes with what nobody can guess; INTERNAL when the system has none.
  using Random = std::function<absl::Status(uint8_t (&bytes)[16])>;
  static Random SystemRandom();  // getrandom(2)

  // `block`: device memory, empty for no budget. Rows are padded to `pitch_alignment` elements. No
  // caller holds more than `bytes_per_caller`, preloaded ones aside; 0: as much as there is.
  ResidentStore(MemoryBlock block, int64_t pitch_alignment, const Clock* clock,
                Random random = SystemRandom(), size_t bytes_per_caller = 0);
  ~ResidentStore();
  ResidentStore(const ResidentStore&) = delete;
  ResidentStore& operator=(const ResidentStore&) = delete;

  // INVALID_ARGUMENT for a name that is no name (letters, digits and . _ - / : only, at most
  // kMaxNameBytes, not shaped like a random handle); ALREADY_EXISTS when it is taken, unless by a
  // matrix of the same creation key (not empty), shape and type, which is the answer then;
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
  // another caller's. Counts as a use of a complete one: only bytes keep an upload.
  absl::StatusOr<ResidentRef> Find(const Caller& caller, const std::string& handle)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Whether the matrix has not left.
  bool Holds(const ResidentRef& matrix) ABSL_LOCKS_EXCLUDED(mutex_);
  // Bytes of an upload came: that counts as a use. False when the matrix has left.
  bool Touch(const ResidentRef& matrix) ABSL_LOCKS_EXCLUDED(mutex_);
  // NOT_FOUND as above; PERMISSION_DENIED for a preloaded one.
  absl::Status Delete(const Caller& caller, const std::string& handle) ABSL_LOCKS_EXCLUDED(mutex_);
  // Removes this very matrix, if it has not left.
  void Drop(const ResidentRef& matrix) ABSL_LOCKS_EXCLUDED(mutex_);
  // The caller's own and the preloaded ones whose handles come after `after`, by handle: at most
  // `limit` ≥ 1.
  ResidentPage ListPage(const Caller& caller, const std::string& after, size_t limit)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // All of them.
  std::vector<ResidentRef> List(const Caller& caller) ABSL_LOCKS_EXCLUDED(mutex_);

  ResidentStats stats() ABSL_LOCKS_EXCLUDED(mutex_);
  // How often a matrix was looked at to see whether its time is over: the cost of that.
  int64_t expiry_looks() ABSL_LOCKS_EXCLUDED(mutex_);
  // The budget.
  const BufferPool& pool() const { return pool_; }
  size_t bytes_per_caller() const { return bytes_per_caller_.load(); }
  // Of matrices that are made from now on; 0: as much as there is.
  void SetBytesPerCaller(size_t bytes) { bytes_per_caller_.store(bytes); }

 private:
  // Owner (empty: preloaded) and handle.
  using Key = std::pair<std::string, std::string>;
  // What an owner holds.
  struct Holding {
    int64_t matrices = 0;          // that have not left
    std::atomic<size_t> bytes{0};  // as carved, of those that left too while somebody uses them
  };
  struct Entry {
    ResidentRef matrix;
    std::shared_ptr<Holding> holding;
    TimePoint expires_at = kInfiniteFuture;
    TimePoint created_at;
    TimePoint used_at;
    std::optional<DueOrder<Key>::Ticket> look;
  };
  using Entries = std::map<Key, Entry>;
  // Who needs room, and how much.
  struct Need {
    std::string owner;
    std::shared_ptr<Holding> holding;
    size_t bytes = 0;   // asked for
    size_t carved = 0;  // what that takes of the pool
  };
  static size_t Carved(size_t bytes) {
    constexpr size_t kUnit = BufferPool::kAlignment;
    return (bytes + kUnit - 1) / kUnit * kUnit;
  }
  // Nobody but the store has a reference, and nobody can get one while its mutex is held.
  static bool IsUnused(const ResidentRef& matrix) { return matrix.use_count() == 1; }

  static Key KeyOf(const ResidentMatrix& matrix);
  std::shared_ptr<Holding> HoldingOf(const std::string& owner)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<ResidentRef> CreateAs(ResidentMatrix::Identity identity, const ResidentSpec& spec)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // The matrix as it will lie, without memory.
  MatrixView ViewOf(const ResidentSpec& spec) const;
  Need NeedOf(const std::string& owner, const MatrixView& view)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // In no map: it goes with its last reference.
  static ResidentRef Hold(const Need& need, std::unique_ptr<ResidentMatrix> matrix);
  absl::StatusOr<std::string> RandomHandle() const;
  void NoteUse(Entry& entry);
  // Of this very matrix; null when it has left.
  Entry* EntryOf(const ResidentRef& matrix) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static bool IsGoingOn(const Entry& upload, TimePoint now);
  // With the mutex held, as IsUnused wants it.
  static bool MayEvict(const Entry& entry, TimePoint now);
  bool IsWithinShare(const Need& need) const;
  // What may go, in the order in which it goes. `by_number`: the number of matrices is short, not
  // their bytes.
  std::vector<Entries::iterator> Victims(const Need& need, bool by_number)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status MakeNumber(const Need& need) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<Lease> LeaseRoom(const Need& need) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<Lease> EvictAndLease(const Need& need) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  ResidentRef Insert(const Need& need, std::unique_ptr<ResidentMatrix> matrix, Nanos ttl)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Erase(Entries::iterator entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Enters when the entry must be looked at next, not before `earliest` unless its time is over.
  void PlanLook(Entries::iterator entry, TimePoint earliest) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void DropExpired() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // By the caller's handle: its own before the preloaded one.
  Entries::iterator Lookup(const Caller& caller, const std::string& handle)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const int64_t pitch_alignment_;
  const Clock* const clock_;
  const Random random_;
  std::atomic<size_t> bytes_per_caller_;  // 0: no limit
  BufferPool pool_;
  Mutex mutex_;
  Entries entries_ ABSL_GUARDED_BY(mutex_);
  DueOrder<Key> looks_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::shared_ptr<Holding>> holdings_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_generation_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tcgemm

#endif  // TCGEMM_SERVER_ENGINE_RESIDENT_STORE_H_
