#include "server/engine/shared_region_store.h"

#include <pthread.h>

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tcgemm {
namespace {

absl::Status NotFound(const std::string& name) {
  return absl::NotFoundError(
      absl::StrCat("no region '", absl::CEscape(name.substr(0, ResidentStore::kMaxNameBytes)),
                   "': never opened by this caller, or its HoldRegion call has ended"));
}

absl::Status TooManyBytes(absl::string_view whose, size_t bytes, size_t used, size_t limit,
                          absl::string_view flag) {
  return absl::ResourceExhaustedError(absl::StrCat("a region of ", bytes, " bytes: ", whose,
                                                   " have ", used, " already, limit ", limit, " (",
                                                   flag, ")"));
}

absl::Status TooManyRegions(absl::string_view what, int count) {
  return absl::ResourceExhaustedError(
      absl::StrCat("already ", count, " regions ", what, ", limit ", count));
}

}  // namespace

SharedRegionStore::SharedRegionStore(const SharedRegionLimits& limits, Device* device,
                                     Random random)
    : limits_{.total_bytes = limits.total_bytes,
              .caller_bytes = limits.caller_bytes == 0
                                  ? limits.total_bytes
                                  : std::min(limits.caller_bytes, limits.total_bytes)},
      device_(device),
      random_(std::move(random)) {
  if (limits_.total_bytes > 0) thread_ = std::thread([this] { Loop(); });
}

SharedRegionStore::~SharedRegionStore() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
    work_cv_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
  std::map<std::string, SharedRegionRef> open;
  {
    MutexLock lock(&mutex_);
    open.swap(open_);
  }
  open.clear();  // into left_, under the lock
  MutexLock lock(&mutex_);
  left_.clear();
}

size_t SharedRegionStore::largest_bytes() const {
  return std::min(limits_.caller_bytes, kMaxRegionBytes);
}

absl::StatusOr<SharedRegionStore::OpenId> SharedRegionStore::Open(const Caller& caller,
                                                                  size_t bytes, OnOpen on_open) {
  const size_t rounded = SharedRegion::RoundUpToPages(bytes);
  if (bytes == 0) return absl::InvalidArgumentError("bytes is 0, must be at least 1");
  if (rounded == 0 || rounded > largest_bytes()) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "a region of ", bytes, " bytes is more than this server lends to one, ", largest_bytes(),
        " (the least of --shared-memory-bytes, --shared-memory-caller-bytes and 16 GiB)"));
  }
  MutexLock lock(&mutex_);
  if (stopping_) return absl::UnavailableError("the server is stopping");
  const auto found = shares_.find(caller.identity);
  TCGEMM_RETURN_IF_ERROR(CheckRoom(found == shares_.end() ? Share{} : found->second, rounded));
  for (Share* const share : {&all_, &shares_[caller.identity]}) {
    share->bytes += rounded;
    ++share->regions;
    ++share->opening;
  }
  const OpenId id = next_id_++;
  opening_.push_back({.id = id, .caller = caller, .bytes = rounded, .on_open = std::move(on_open)});
  work_cv_.NotifyOne();
  return id;
}

absl::Status SharedRegionStore::CheckRoom(const Share& share, size_t bytes) const {
  if (bytes > limits_.total_bytes - all_.bytes) {
    return TooManyBytes("all regions", bytes, all_.bytes, limits_.total_bytes,
                        "--shared-memory-bytes");
  }
  if (bytes > limits_.caller_bytes - share.bytes) {
    return TooManyBytes("this caller's regions", bytes, share.bytes, limits_.caller_bytes,
                        "--shared-memory-caller-bytes");
  }
  if (all_.regions >= kMaxRegions) return TooManyRegions("in all", kMaxRegions);
  if (share.regions >= kMaxRegionsOfCaller) {
    return TooManyRegions("of this caller", kMaxRegionsOfCaller);
  }
  if (all_.opening >= kMaxOpening) return TooManyRegions("being opened", kMaxOpening);
  if (share.opening >= kMaxOpeningOfCaller) {
    return TooManyRegions("of this caller being opened", kMaxOpeningOfCaller);
  }
  return absl::OkStatus();
}

bool SharedRegionStore::CancelOpen(OpenId id) {
  Opening cancelled;
  {
    MutexLock lock(&mutex_);
    const auto it = std::find_if(opening_.begin(), opening_.end(),
                                 [id](const Opening& opening) { return opening.id == id; });
    if (it == opening_.end()) return false;
    cancelled = std::move(*it);
    opening_.erase(it);
    EndOpening(cancelled);
    ReturnShare(cancelled.caller, cancelled.bytes);
  }
  return true;
}

absl::StatusOr<SharedRegionRef> SharedRegionStore::Find(const Caller& caller,
                                                        const std::string& name) const {
  MutexLock lock(&mutex_);
  const auto it = open_.find(name);
  if (it == open_.end() || !(it->second->identity().owner == caller)) return NotFound(name);
  return it->second;
}

void SharedRegionStore::Close(const SharedRegionRef& region) {
  SharedRegionRef closed;  // goes without the lock, which the last reference takes
  MutexLock lock(&mutex_);
  const auto it = open_.find(region->identity().name);
  if (it == open_.end() || it->second != region) return;
  closed = std::move(it->second);
  open_.erase(it);
}

size_t SharedRegionStore::used_bytes() const {
  MutexLock lock(&mutex_);
  return all_.bytes + leaving_bytes_;
}

int SharedRegionStore::regions() const {
  MutexLock lock(&mutex_);
  return all_.regions;
}

// ---- The thread ----

void SharedRegionStore::Loop() {
  pthread_setname_np(pthread_self(), "engine-regions");
  while (true) {
    std::vector<std::unique_ptr<SharedRegion>> left;
    std::list<Opening> next;
    bool stopping;
    {
      MutexLock lock(&mutex_);
      while (left_.empty() && opening_.empty() && !stopping_) work_cv_.Wait(&mutex_);
      left.swap(left_);
      stopping = stopping_;
      // What goes makes room for what comes.
      if (stopping) next.swap(opening_);
      if (!stopping && left.empty()) next.splice(next.end(), opening_, opening_.begin());
    }
    for (auto& region : left) TakeDown(std::move(region));
    for (const Opening& opening : next) {
      Finish(opening,
             stopping ? absl::UnavailableError("the server is stopping") : Create(opening));
    }
    if (stopping && left.empty()) return;
  }
}

absl::StatusOr<SharedRegionRef> SharedRegionStore::Create(const Opening& opening) {
  uint8_t bytes[16];
  TCGEMM_RETURN_IF_ERROR(random_(bytes));
  std::string name = absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(bytes), sizeof(bytes)));
  TCGEMM_ASSIGN_OR_RETURN(std::unique_ptr<SharedRegion> region,
                          SharedRegion::Create({.name = std::move(name), .owner = opening.caller},
                                               opening.bytes, device_));
  // Whoever drops the last reference, an engine thread perhaps, only hands it to the thread.
  return SharedRegionRef(region.release(), [this](SharedRegion* last) {
    std::unique_ptr<SharedRegion> owned(last);
    MutexLock lock(&mutex_);
    // Its share comes back now: the thread takes it down before it makes what may come for it.
    ReturnShare(owned->identity().owner, owned->bytes());
    leaving_bytes_ += owned->bytes();
    left_.push_back(std::move(owned));
    work_cv_.NotifyOne();
  });
}

void SharedRegionStore::Finish(const Opening& opening, absl::StatusOr<SharedRegionRef> region) {
  {
    MutexLock lock(&mutex_);
    EndOpening(opening);
    if (region.ok()) {
      open_[(*region)->identity().name] = *region;
    } else {
      ReturnShare(opening.caller, opening.bytes);
    }
  }
  opening.on_open(std::move(region));
}

void SharedRegionStore::TakeDown(std::unique_ptr<SharedRegion> region) {
  const size_t bytes = region->bytes();
  region.reset();
  MutexLock lock(&mutex_);
  leaving_bytes_ -= bytes;
}

void SharedRegionStore::EndOpening(const Opening& opening) {
  --all_.opening;
  --shares_[opening.caller.identity].opening;
}

void SharedRegionStore::ReturnShare(const Caller& caller, size_t bytes) {
  all_.bytes -= bytes;
  --all_.regions;
  const auto it = shares_.find(caller.identity);
  it->second.bytes -= bytes;
  if (--it->second.regions == 0) shares_.erase(it);
}

}  // namespace tcgemm
