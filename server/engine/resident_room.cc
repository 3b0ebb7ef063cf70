// Room for a new matrix in a ResidentStore: whose others go for it, and in which order.
#include <algorithm>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "server/engine/resident_store.h"

namespace tcgemm {

std::shared_ptr<ResidentStore::Holding> ResidentStore::HoldingOf(const std::string& owner) {
  if (const auto known = holdings_.find(owner); known != holdings_.end()) return known->second;
  // Each that holds something has a matrix here, or a call under way: the others are forgotten now
  // and then.
  if (static_cast<int64_t>(holdings_.size()) >= 2 * kMaxMatrices) {
    std::erase_if(holdings_, [](const auto& item) { return item.second.use_count() == 1; });
  }
  return holdings_[owner] = std::make_shared<Holding>();
}

bool ResidentStore::IsGoingOn(const Entry& upload, TimePoint now) {
  if (now - upload.used_at >= kStalledUpload) return false;
  const std::chrono::duration<double> counted = now - upload.created_at - kStalledUpload;
  return static_cast<double>(upload.matrix->present_bytes()) >=
         counted.count() * static_cast<double>(kSlowestUpload);
}

bool ResidentStore::MayEvict(const Entry& entry, TimePoint now) {
  if (entry.matrix->identity().preloaded || !IsUnused(entry.matrix)) return false;
  return entry.matrix->complete() || !IsGoingOn(entry, now);
}

bool ResidentStore::IsWithinShare(const Need& need) const {
  const size_t limit = bytes_per_caller();
  if (limit == 0 || need.owner.empty()) return true;
  const size_t held = need.holding->bytes.load();
  return held <= limit && need.carved <= limit - held;
}

std::vector<ResidentStore::Entries::iterator> ResidentStore::Victims(const Need& need,
                                                                     bool by_number) {
  const bool own_only_first = !by_number && !IsWithinShare(need);
  const size_t mine = by_number ? static_cast<size_t>(need.holding->matrices) + 1
                                : need.holding->bytes.load() + need.carved;
  const TimePoint now = clock_->Now();
  constexpr int kStays = 4;
  const auto rank = [&](const Entries::iterator& entry) {
    if (!MayEvict(entry->second, now)) return kStays;
    if (entry->first.first == need.owner) return own_only_first ? 0 : 2;
    const Holding& other = *entry->second.holding;
    const size_t theirs = by_number ? static_cast<size_t>(other.matrices) : other.bytes.load();
    if (theirs > mine) return 1;
    const bool works_with_it =
        entry->second.matrix->complete() && now - entry->second.used_at < kRecentUse;
    return works_with_it ? kStays : 3;
  };
  struct Victim {
    int rank;
    TimePoint used_at;
    Entries::iterator entry;
  };
  std::vector<Victim> order;
  for (auto it = entries_.begin(); it != entries_.end(); ++it) {
    const int place = rank(it);
    if (place != kStays) order.push_back({place, it->second.used_at, it});
  }
  std::sort(order.begin(), order.end(), [](const Victim& a, const Victim& b) {
    return std::tie(a.rank, a.used_at) < std::tie(b.rank, b.used_at);
  });
  std::vector<Entries::iterator> victims;
  victims.reserve(order.size());
  for (const Victim& victim : order) victims.push_back(victim.entry);
  return victims;
}

absl::Status ResidentStore::MakeNumber(const Need& need) {
  if (static_cast<int64_t>(entries_.size()) < kMaxMatrices) return absl::OkStatus();
  const std::vector<Entries::iterator> victims = Victims(need, /*by_number=*/true);
  if (victims.empty()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("already ", entries_.size(), " resident matrices, limit ", kMaxMatrices));
  }
  Erase(victims.front());
  return absl::OkStatus();
}

absl::StatusOr<Lease> ResidentStore::LeaseRoom(const Need& need) {
  if (need.bytes > pool_.total_bytes()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the matrix needs ", need.bytes, " bytes, this server keeps at most ",
                     pool_.total_bytes(), " resident (--resident-bytes)"));
  }
  const size_t limit = bytes_per_caller();
  if (limit > 0 && !need.owner.empty() && need.carved > limit) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the matrix takes ", need.carved, " bytes, this server keeps at most ", limit,
                     " of one caller (--resident-bytes-per-caller)"));
  }
  if (IsWithinShare(need)) {
    absl::StatusOr<Lease> lease = pool_.TryLease(need.bytes);
    if (lease.ok()) return lease;
  }
  return EvictAndLease(need);
}

absl::StatusOr<Lease> ResidentStore::EvictAndLease(const Need& need) {
  const std::vector<Entries::iterator> victims = Victims(need, /*by_number=*/false);
  size_t own = 0;
  size_t within_reach = pool_.total_bytes() - pool_.used_bytes();
  for (const auto& victim : victims) {
    const size_t carved = Carved(victim->second.matrix->memory_bytes());
    within_reach += carved;
    if (victim->first.first == need.owner) own += carved;
  }
  // Nothing goes in vain.
  const size_t held = need.holding->bytes.load();
  const size_t limit = bytes_per_caller();
  if (!IsWithinShare(need) && held - std::min(held, own) + need.carved > limit) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the matrix takes ", need.carved, " bytes; the caller holds ", held,
                     " of its ", limit, " (--resident-bytes-per-caller), of which ", own,
                     " can be spared: the rest is in use now or being uploaded"));
  }
  for (auto victim = victims.begin(); within_reach >= need.bytes; ++victim) {
    if (IsWithinShare(need)) {
      absl::StatusOr<Lease> lease = pool_.TryLease(need.bytes);
      if (lease.ok()) return lease;
    }
    if (victim == victims.end()) break;
    Erase(*victim);
  }
  return absl::ResourceExhaustedError(absl::StrCat(
      "the matrix needs ", need.bytes, " bytes; ", pool_.used_bytes(), " of the ",
      pool_.total_bytes(),
      " that this server keeps resident (--resident-bytes) are in use now, preloaded, being "
      "uploaded, or were used just now by callers who hold less: delete what is not needed"));
}

}  // namespace tcgemm
