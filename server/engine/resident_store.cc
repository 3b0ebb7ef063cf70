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

// The matrix is the one that `spec` asked for before.
bool IsSameCreation(const ResidentMatrix& matrix, const ResidentSpec& spec) {
  const MatrixView& view = matrix.view();
  return !spec.creation_key.empty() && matrix.identity().creation_key == spec.creation_key &&
         view.rows == spec.rows && view.cols == spec.cols && view.dtype == spec.dtype;
}

// Of this process's store: later processes, and whoever sees both, must not mistake one for
// another.
uint64_t FirstGeneration() {
  return static_cast<uint64_t>(std::chrono::system_clock::now().time_since_epoch() / Nanos(1));
}

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
                             Random random, size_t bytes_per_caller)
    : pitch_alignment_(pitch_alignment),
      clock_(clock),
      random_(std::move(random)),
      bytes_per_caller_(bytes_per_caller),
      pool_("resident", std::move(block)),
      next_generation_(FirstGeneration()) {}

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
  const MatrixView view = ViewOf(spec);
  MutexLock lock(&mutex_);
  DropExpired();
  const Need need = NeedOf(caller.identity, view);
  TCGEMM_ASSIGN_OR_RETURN(Lease lease, LeaseRoom(need));
  ResidentMatrix::Identity identity{.owner = caller};
  return Hold(need, std::make_unique<ResidentMatrix>(std::move(identity), view, std::move(lease)));
}

MatrixView ResidentStore::ViewOf(const ResidentSpec& spec) const {
  MatrixView view{.rows = spec.rows, .cols = spec.cols, .dtype = spec.dtype};
  view.ld = (spec.cols + pitch_alignment_ - 1) / pitch_alignment_ * pitch_alignment_;
  return view;
}

ResidentStore::Need ResidentStore::NeedOf(const std::string& owner, const MatrixView& view) {
  const double estimate = static_cast<double>(view.rows) * static_cast<double>(view.ld) *
                          static_cast<double>(DTypeSize(view.dtype));
  // Beyond 2^62 the exact size would overflow, and no budget reaches it.
  const size_t bytes = static_cast<size_t>(std::min(estimate, 0x1p62));
  return {.owner = owner, .holding = HoldingOf(owner), .bytes = bytes, .carved = Carved(bytes)};
}

absl::StatusOr<ResidentRef> ResidentStore::CreateAs(ResidentMatrix::Identity identity,
                                                    const ResidentSpec& spec) {
  const MatrixView view = ViewOf(spec);
  MutexLock lock(&mutex_);
  DropExpired();
  if (const auto taken = Lookup(identity.owner, identity.handle); taken != entries_.end()) {
    Entry& entry = taken->second;
    if (IsSameCreation(*entry.matrix, spec)) {
      NoteUse(entry);
      return entry.matrix;
    }
    return absl::AlreadyExistsError(
        absl::StrCat("a matrix '", identity.handle, "' exists: delete it or choose another name"));
  }
  const Need need = NeedOf(identity.preloaded ? "" : identity.owner.identity, view);
  TCGEMM_RETURN_IF_ERROR(MakeNumber(need));
  TCGEMM_ASSIGN_OR_RETURN(Lease lease, LeaseRoom(need));
  identity.creation_key = spec.creation_key;
  identity.generation = next_generation_++;
  return Insert(need, std::make_unique<ResidentMatrix>(std::move(identity), view, std::move(lease)),
                spec.ttl);
}

ResidentRef ResidentStore::Hold(const Need& need, std::unique_ptr<ResidentMatrix> matrix) {
  need.holding->bytes.fetch_add(need.carved);
  // The owner holds the bytes until the last reference goes.
  const auto release = [holding = need.holding, carved = need.carved](ResidentMatrix* gone) {
    delete gone;
    holding->bytes.fetch_sub(carved);
  };
  return ResidentRef(matrix.release(), release);
}

ResidentRef ResidentStore::Insert(const Need& need, std::unique_ptr<ResidentMatrix> matrix,
                                  Nanos ttl) {
  ResidentRef reference = Hold(need, std::move(matrix));
  ++need.holding->matrices;
  const TimePoint now = clock_->Now();
  Entry entry{.matrix = reference, .holding = need.holding, .created_at = now, .used_at = now};
  if (ttl > Nanos(0) && ttl < kInfiniteFuture - now) entry.expires_at = now + ttl;
  PlanLook(entries_.emplace(KeyOf(*reference), std::move(entry)).first, now);
  return reference;
}

void ResidentStore::Erase(Entries::iterator entry) {
  if (entry->second.look.has_value()) looks_.Remove(*entry->second.look);
  --entry->second.holding->matrices;
  entries_.erase(entry);
}

// ---- The end of their time ----

void ResidentStore::PlanLook(Entries::iterator entry, TimePoint earliest) {
  Entry& planned = entry->second;
  TimePoint due = planned.expires_at;
  if (!planned.matrix->complete()) {
    due = std::min(due, std::max(planned.used_at + kUnfinishedLife, earliest));
  }
  if (due < kInfiniteFuture) planned.look = looks_.Add(due, entry->first);
}

void ResidentStore::DropExpired() {
  const TimePoint now = clock_->Now();
  while (const std::optional<Key> key = looks_.TakeDue(now)) {
    const auto it = entries_.find(*key);
    Entry& entry = it->second;
    entry.look.reset();
    const bool abandoned = !entry.matrix->complete() && IsUnused(entry.matrix) &&
                           now - entry.used_at >= kUnfinishedLife;
    if (abandoned || entry.expires_at <= now) {
      Erase(it);
    } else {
      // It was used meanwhile, or a stream holds it.
      PlanLook(it, now + kUnfinishedLife / 10);
    }
  }
}

ResidentStore::Entries::iterator ResidentStore::Lookup(const Caller& caller,
                                                       const std::string& handle) {
  const auto own = entries_.find({caller.identity, handle});
  return own != entries_.end() ? own : entries_.find({"", handle});
}

absl::StatusOr<ResidentRef> ResidentStore::Find(const Caller& caller, const std::string& handle) {
  MutexLock lock(&mutex_);
  const auto it = Lookup(caller, handle);
  const TimePoint now = clock_->Now();
  if (it == entries_.end()) return NotFound(handle);
  if (it->second.expires_at <= now) {
    Erase(it);
    return NotFound(handle);
  }
  NoteUse(it->second);
  return it->second.matrix;
}

void ResidentStore::NoteUse(Entry& entry) {
  if (entry.matrix->complete()) entry.used_at = clock_->Now();
}

ResidentStore::Entry* ResidentStore::EntryOf(const ResidentRef& matrix) {
  const auto it = entries_.find(KeyOf(*matrix));
  const bool holds =
      it != entries_.end() && it->second.matrix == matrix && it->second.expires_at > clock_->Now();
  return holds ? &it->second : nullptr;
}

bool ResidentStore::Holds(const ResidentRef& matrix) {
  MutexLock lock(&mutex_);
  return EntryOf(matrix) != nullptr;
}

bool ResidentStore::Touch(const ResidentRef& matrix) {
  MutexLock lock(&mutex_);
  Entry* const entry = EntryOf(matrix);
  if (entry != nullptr) entry->used_at = clock_->Now();
  return entry != nullptr;
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
  Erase(it);
  return absl::OkStatus();
}

void ResidentStore::Drop(const ResidentRef& matrix) {
  MutexLock lock(&mutex_);
  const auto it = entries_.find(KeyOf(*matrix));
  if (it != entries_.end() && it->second.matrix == matrix) Erase(it);
}

ResidentPage ResidentStore::ListPage(const Caller& caller, const std::string& after, size_t limit) {
  ResidentPage page;
  MutexLock lock(&mutex_);
  DropExpired();
  auto own = entries_.upper_bound({caller.identity, after});
  auto preloaded = entries_.upper_bound({"", after});
  while (true) {
    const bool has_own = own != entries_.end() && own->first.first == caller.identity;
    const bool has_preloaded = preloaded != entries_.end() && preloaded->first.first.empty();
    if (!has_own && !has_preloaded) return page;
    page.more = page.matrices.size() == limit;
    if (page.more) return page;
    const bool own_first =
        has_own && (!has_preloaded || own->first.second < preloaded->first.second);
    auto& next = own_first ? own : preloaded;
    page.matrices.push_back(next->second.matrix);
    ++next;
  }
}

std::vector<ResidentRef> ResidentStore::List(const Caller& caller) {
  return ListPage(caller, "", kMaxMatrices).matrices;
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

int64_t ResidentStore::expiry_looks() {
  MutexLock lock(&mutex_);
  return looks_.looks();
}

}  // namespace tcgemm
