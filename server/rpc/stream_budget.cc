#include "server/rpc/stream_budget.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace tcgemm {

StreamBudget::Share& StreamBudget::Share::operator=(Share&& other) noexcept {
  if (this == &other) return *this;
  Reset();
  budget_ = std::exchange(other.budget_, nullptr);
  bytes_ = std::exchange(other.bytes_, 0);
  return *this;
}

void StreamBudget::Share::Reset() {
  if (budget_ != nullptr) std::exchange(budget_, nullptr)->Return(std::exchange(bytes_, 0));
}

absl::StatusOr<StreamBudget::Share> StreamBudget::Take(size_t bytes) {
  MutexLock lock(&mutex_);
  if (bytes > bytes_ - used_) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the stream's panels need ", bytes, " bytes; ", streams_, " other streams have ", used_,
        " of the ", bytes_, " for streams (half of --pinned-bytes)"));
  }
  ++streams_;
  used_ += bytes;
  return Share(this, bytes);
}

void StreamBudget::Return(size_t bytes) {
  MutexLock lock(&mutex_);
  --streams_;
  used_ -= bytes;
}

}  // namespace tcgemm
