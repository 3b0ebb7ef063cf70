#include "server/engine/resident_store.h"

#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tcgemm {
namespace {

constexpr size_t kHandleDigits = 32;

size_t RoundUp(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }

bool IsNameByte(char c) {
  return absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
         (c != '\0' && std::strchr("._-/:", c) != nullptr);
}

bool LooksRandom(const std::string& name) {
  return name.size() == kHandleDigits && std::all_of(name.begin(), name.end(), [](char c) {
           return absl::ascii_isxdigit(static_cast<unsigned char>(c));
         });
}

absl::Status CheckName(const std::string& name) {
  const bool good = !name.empty() && name.size() <= ResidentStore::kMaxNameBytes &&
                    std::all_of(name.begin(), name.end(), IsNameByte);
  if (!good) {
    return absl::InvalidArgumentError(absl::StrCat(
        "name '", absl::CEscape(name.substr(0, ResidentStore::kMaxNameBytes)), "' must be 1 to ",
        ResidentStore::kMaxNameBytes, " letters, digits, '.', '_', '-', '/' or ':'"));
  }
  if (!LooksRandom(name)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("name '", name, "' looks like a random handle: choose another"));
}

absl::Status NotFound(const std::string& handle) {
  return absl::NotFoundError(
      absl::StrCat("no matrix '", absl::CEscape(handle.substr(0, ResidentStore::kMaxNameBytes)),
                   "': never uploaded by this caller, deleted, expired or evicted"));
}

// Nobody but the store has a reference, and nobody can get one while its mutex is held.
bool IsUnused(const ResidentRef& matrix) { return matrix.use_count() == 1; }

}  // namespace

ResidentStore::Random ResidentStore::SystemRandom() {
  return [](uint8_t(&bytes)[16]) -> absl::Status {
    ssize_t got;
    do {
      got = getrandom(bytes, sizeof(bytes), 0);
    } while (got < 0 && errno == EINTR);
    if (got == static_cast<ssize_t>(sizeof(bytes))) return absl::OkStatus();
    return absl::InternalError("getrandom gave no random bytes");
  };
}

ResidentStore::ResidentStore(MemoryBlock block, int64_t pitch_alignment, const Clock* clock,
                             Random random)
    : pitch_alignment_(pitch_alignment),
      clock_(clock),
      random_(std::move(random)),
      pool_("resident", std::move(block)) {}

ResidentStore::~ResidentStore() {
  MutexLock lock(&mutex_);
  entries_.clear();
}

ResidentStore::Key ResidentStore::KeyOf(const ResidentMatrix& matrix) {
  const ResidentMatrix::Identity& identity = matrix.identity();
  return {identity.preloaded ? "" : identity.owner.identity, identity.handle};
}

absl::StatusOr<std::string> ResidentStore::RandomHandle() const {
  uint8_t bytes[16];
  TCGEMM_RETURN_IF_ERROR(random_(bytes));
  return absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(bytes), sizeof(bytes)));
}

absl::StatusOr<ResidentRef> ResidentStore::Create(const Caller& caller, const ResidentSpec& spec) {
  ResidentMatrix::Identity identity{
      .handle = spec.name, .name = spec.name, .owner = caller, .product = spec.product};
  if (spec.name.empty()) {
    TCGEMM_ASSIGN_OR_RETURN(identity.handle, RandomHandle());
  } else {
    TCGEMM_RETURN_IF_ERROR(CheckName(spec.name));
  }
  return CreateAs(std::move(identity), spec);
}

absl::StatusOr<ResidentRef> ResidentStore::CreatePreloaded(const ResidentSpec& spec) {
  TCGEMM_RETURN_IF_ERROR(CheckName(spec.name));
  return CreateAs({.handle = spec.name, .name = spec.name, .owner = {}, .preloaded = true}, spec);
}

absl::StatusOr<ResidentRef> ResidentStore::CreateTemporary(const Caller& caller,
                                                           const ResidentSpec& spec) {
  MutexLock lock(&mutex_);
  DropExpired();
  return Make({.owner = caller}, spec);
}

absl::StatusOr<ResidentRef> ResidentStore::CreateAs(ResidentMatrix::Identity identity,
                                                    const ResidentSpec& spec) {
  MutexLock lock(&mutex_);
  DropExpired();
  const Caller owner = identity.owner;
  if (Lookup(owner, identity.handle) != entries_.end()) {
    return absl::AlreadyExistsError(
        absl::StrCat("a matrix '", identity.handle, "' exists: delete it or choose another name"));
  }
  if (static_cast<int64_t>(entries_.size()) >= kMaxMatrices && !EvictOne()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("already ", entries_.size(), " resident matrices, limit ", kMaxMatrices));
  }
  TCGEMM_ASSIGN_OR_RETURN(const ResidentRef matrix, Make(std::move(identity), spec));
  const TimePoint now = clock_->Now();
  Entry entry{.matrix = matrix, .used_at = now};
  if (spec.ttl > Nanos(0) && spec.ttl < kInfiniteFuture - now) entry.expires_at = now + spec.ttl;
  entries_.emplace(KeyOf(*matrix), std::move(entry));
  return matrix;
}

absl::StatusOr<ResidentRef> ResidentStore::Make(ResidentMatrix::Identity identity,
                                                const ResidentSpec& spec) {
  MatrixView view{.rows = spec.rows, .cols = spec.cols, .dtype = spec.dtype};
  view.ld = (spec.cols + pitch_alignment_ - 1) / pitch_alignment_ * pitch_alignment_;
  const double estimate = static_cast<double>(view.rows) * static_cast<double>(view.ld) *
                          static_cast<double>(DTypeSize(view.dtype));
  // Beyond 2^62 the exact size would overflow, and no budget reaches it.
  const size_t bytes = static_cast<size_t>(std::min(estimate, 0x1p62));
  TCGEMM_ASSIGN_OR_RETURN(Lease lease, LeaseRoom(bytes));
  return std::make_shared<ResidentMatrix>(std::move(identity), view, std::move(lease));
}

bool ResidentStore::MayEvict(const Entry& entry) const {
  return !entry.matrix->identity().preloaded && entry.matrix->complete() && IsUnused(entry.matrix);
}

bool ResidentStore::EvictOne() {
  auto oldest = entries_.end();
  for (auto it = entries_.begin(); it != entries_.end(); ++it) {
    if (!MayEvict(it->second)) continue;
    if (oldest == entries_.end() || it->second.used_at < oldest->second.used_at) oldest = it;
  }
  if (oldest == entries_.end()) return false;
  entries_.erase(oldest);
  return true;
}

absl::StatusOr<Lease> ResidentStore::LeaseRoom(size_t bytes) {
  if (bytes > pool_.total_bytes()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the matrix needs ", bytes, " bytes, this server keeps at most ",
                     pool_.total_bytes(), " resident (--resident-bytes)"));
  }
  absl::StatusOr<Lease> lease = pool_.TryLease(bytes);
  if (lease.ok()) return lease;
  std::vector<std::map<Key, Entry>::iterator> evictable;
  size_t within_reach = pool_.total_bytes() - pool_.used_bytes();
  for (auto it = entries_.begin(); it != entries_.end(); ++it) {
    if (MayEvict(it->second)) {
      evictable.push_back(it);
      within_reach += RoundUp(it->second.matrix->memory_bytes(), BufferPool::kAlignment);
    }
  }
  // Nothing goes in vain.
  if (within_reach < bytes) evictable.clear();
  std::sort(evictable.begin(), evictable.end(),
            [](auto a, auto b) { return a->second.used_at < b->second.used_at; });
  for (const auto it : evictable) {
    entries_.erase(it);
    lease = pool_.TryLease(bytes);
    if (lease.ok()) return lease;
  }
  return absl::ResourceExhaustedError(absl::StrCat(
      "the matrix needs ", bytes, " bytes; ", pool_.used_bytes(), " of the ", pool_.total_bytes(),
      " that this server keeps resident (--resident-bytes) are in use now, preloaded or not "
      "uploaded in full: delete what is not needed"));
}

void ResidentStore::DropExpired() {
  const TimePoint now = clock_->Now();
  for (auto it = entries_.begin(); it != entries_.end();) {
    const Entry& entry = it->second;
    const bool abandoned = !entry.matrix->complete() && IsUnused(entry.matrix) &&
                           now - entry.used_at >= kUnfinishedLife;
    it = abandoned || entry.expires_at <= now ? entries_.erase(it) : std::next(it);
  }
}

std::map<ResidentStore::Key, ResidentStore::Entry>::iterator ResidentStore::Lookup(
    const Caller& caller, const std::string& handle) {
  const auto own = entries_.find({caller.identity, handle});
  return own != entries_.end() ? own : entries_.find({"", handle});
}

absl::StatusOr<ResidentRef> ResidentStore::Find(const Caller& caller, const std::string& handle) {
  MutexLock lock(&mutex_);
  const auto it = Lookup(caller, handle);
  const TimePoint now = clock_->Now();
  if (it == entries_.end()) return NotFound(handle);
  if (it->second.expires_at <= now) {
    entries_.erase(it);
    return NotFound(handle);
  }
  it->second.used_at = now;
  return it->second.matrix;
}

bool ResidentStore::Touch(const ResidentRef& matrix) {
  MutexLock lock(&mutex_);
  const auto it = entries_.find(KeyOf(*matrix));
  const TimePoint now = clock_->Now();
  if (it == entries_.end() || it->second.matrix != matrix || it->second.expires_at <= now) {
    return false;
  }
  it->second.used_at = now;
  return true;
}

absl::Status ResidentStore::Delete(const Caller& caller, const std::string& handle) {
  MutexLock lock(&mutex_);
  DropExpired();
  const auto it = Lookup(caller, handle);
  if (it == entries_.end()) return NotFound(handle);
  if (it->second.matrix->identity().preloaded) {
    return absl::PermissionDeniedError(
        absl::StrCat("matrix '", handle, "' was preloaded by the operator: it cannot be deleted"));
  }
  entries_.erase(it);
  return absl::OkStatus();
}

void ResidentStore::Drop(const ResidentRef& matrix) {
  MutexLock lock(&mutex_);
  const auto it = entries_.find(KeyOf(*matrix));
  if (it != entries_.end() && it->second.matrix == matrix) entries_.erase(it);
}

std::vector<ResidentRef> ResidentStore::List(const Caller& caller) {
  std::vector<ResidentRef> found;
  MutexLock lock(&mutex_);
  DropExpired();
  for (const auto& [key, entry] : entries_) {
    if (key.first.empty() || key.first == caller.identity) found.push_back(entry.matrix);
  }
  std::sort(found.begin(), found.end(), [](const ResidentRef& a, const ResidentRef& b) {
    return a->identity().handle < b->identity().handle;
  });
  return found;
}

ResidentStats ResidentStore::stats() {
  MutexLock lock(&mutex_);
  DropExpired();
  ResidentStats stats;
  for (const auto& [key, entry] : entries_) {
    ++stats.matrices;
    stats.bytes += entry.matrix->memory_bytes();
  }
  return stats;
}

}  // namespace tcgemm
