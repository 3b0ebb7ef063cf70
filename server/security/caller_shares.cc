#include "server/security/caller_shares.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace tcgemm {
namespace {

absl::Status TooManyBytes(size_t held, size_t wanted, uint64_t limit) {
  return absl::ResourceExhaustedError(
      absl::StrCat("this caller's calls hold ", held, " bytes of operands and results",
                   wanted > 0 ? absl::StrCat(", this one needs ", wanted) : "", ", limit ", limit,
                   " (--queue-bytes-per-caller)"));
}

}  // namespace

CallerShares::Share& CallerShares::Share::operator=(Share&& other) noexcept {
  if (this == &other) return *this;
  Reset();
  shares_ = std::exchange(other.shares_, nullptr);
  identity_ = std::move(other.identity_);
  bytes_ = std::exchange(other.bytes_, 0);
  answered_ = std::exchange(other.answered_, false);
  return *this;
}

void CallerShares::Share::Reset() {
  if (shares_ != nullptr) shares_->End(*this);
  shares_ = nullptr;
  bytes_ = 0;
  answered_ = false;
}

void CallerShares::Share::NoteAnswer() {
  if (shares_ == nullptr || answered_) return;
  answered_ = true;
  shares_->NoteAnswer(identity_);
}

absl::Status CallerShares::Share::AddBytes(size_t bytes) {
  if (shares_ == nullptr) return absl::OkStatus();
  absl::Status added = shares_->AddBytes(identity_, bytes);
  if (added.ok()) bytes_ += bytes;
  return added;
}

void CallerShares::SetLimits(const CallerLimits& limits) {
  MutexLock lock(&mutex_);
  limits_ = limits;
}

absl::StatusOr<CallerShares::Share> CallerShares::Start(const Caller& caller) {
  MutexLock lock(&mutex_);
  Usage& usage = usage_[caller.identity];
  const int inflight =
      usage.calls - std::min(usage.answered, std::max(limits_.max_inflight, kMostAnswered));
  if (limits_.max_inflight > 0 && inflight >= limits_.max_inflight) {
    return absl::ResourceExhaustedError(
        absl::StrCat("this caller has ", inflight, " calls in flight, limit ", limits_.max_inflight,
                     " (--max-inflight-per-caller)"));
  }
  // Before its payload comes: how much that will be is not known yet.
  if (limits_.queue_bytes > 0 && usage.bytes >= limits_.queue_bytes) {
    return TooManyBytes(usage.bytes, 0, limits_.queue_bytes);
  }
  ++usage.calls;
  Share share;
  share.shares_ = this;
  share.identity_ = caller.identity;
  return share;
}

bool CallerShares::IsBeyondLimit(size_t bytes) const {
  MutexLock lock(&mutex_);
  return limits_.queue_bytes > 0 && bytes > limits_.queue_bytes;
}

absl::Status CallerShares::AddBytes(const std::string& identity, size_t bytes) {
  MutexLock lock(&mutex_);
  Usage& usage = usage_[identity];
  const uint64_t limit = limits_.queue_bytes;
  if (limit > 0 && (bytes > limit || usage.bytes > limit - bytes)) {
    return TooManyBytes(usage.bytes, bytes, limit);
  }
  usage.bytes += bytes;
  return absl::OkStatus();
}

void CallerShares::NoteAnswer(const std::string& identity) {
  MutexLock lock(&mutex_);
  ++usage_[identity].answered;
}

void CallerShares::End(const Share& share) {
  MutexLock lock(&mutex_);
  const auto it = usage_.find(share.identity_);
  Usage& usage = it->second;
  usage.bytes -= share.bytes_;
  if (share.answered_) --usage.answered;
  if (--usage.calls == 0) usage_.erase(it);
}

size_t CallerShares::callers() const {
  MutexLock lock(&mutex_);
  return usage_.size();
}

}  // namespace tcgemm
