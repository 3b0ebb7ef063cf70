#include "server/rpc/call_context.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace tcgemm {

bool CallCounter::TryStart(int limit) {
  MutexLock lock(&mutex_);
  ++totals_.started;
  if (inflight_ >= limit) return false;
  ++inflight_;
  return true;
}

void CallCounter::NoteAdmitted() {
  MutexLock lock(&mutex_);
  ++totals_.admitted;
}

void CallCounter::NoteEnded(bool admitted, absl::StatusCode code) {
  MutexLock lock(&mutex_);
  if (admitted) ++(code == absl::StatusCode::kOk ? totals_.completed : totals_.failed);
  if (--inflight_ == 0) idle_cv_.NotifyAll();
}

bool CallCounter::WaitIdle(TimePoint deadline) {
  MutexLock lock(&mutex_);
  while (inflight_ > 0) {
    if (!idle_cv_.WaitUntil(&mutex_, deadline)) return inflight_ == 0;
  }
  return true;
}

CallTotals CallCounter::totals() const {
  MutexLock lock(&mutex_);
  return totals_;
}

void LiveCount::Add() {
  MutexLock lock(&mutex_);
  ++count_;
}

void LiveCount::Remove() {
  MutexLock lock(&mutex_);
  if (--count_ == 0) none_cv_.NotifyAll();
}

void LiveCount::WaitForNone() {
  MutexLock lock(&mutex_);
  while (count_ > 0) none_cv_.Wait(&mutex_);
}

void PeerUids::Set(int fd, UnixPeer peer) {
  MutexLock lock(&mutex_);
  peers_[fd] = std::move(peer);
}

std::optional<UnixPeer> PeerUids::Find(const std::string& peer) const {
  int fd;
  if (peer.rfind("fd:", 0) != 0 || !absl::SimpleAtoi(peer.substr(3), &fd)) return std::nullopt;
  MutexLock lock(&mutex_);
  const auto it = peers_.find(fd);
  if (it == peers_.end()) return std::nullopt;
  return it->second;
}

absl::Status HeldCalls::Add(const Target* key, std::weak_ptr<Target> call) {
  MutexLock lock(&mutex_);
  if (ended_) return absl::UnavailableError("the server is draining: try another one");
  if (calls_.size() >= kMaxCalls) {
    return absl::ResourceExhaustedError(
        absl::StrCat("already ", calls_.size(), " HoldRegion calls under way"));
  }
  calls_[key] = std::move(call);
  return absl::OkStatus();
}

void HeldCalls::Remove(const Target* key) {
  MutexLock lock(&mutex_);
  calls_.erase(key);
}

void HeldCalls::EndAll() {
  std::map<const Target*, std::weak_ptr<Target>> calls;
  {
    MutexLock lock(&mutex_);
    ended_ = true;
    calls.swap(calls_);
  }
  for (const auto& [key, call] : calls) {
    if (const std::shared_ptr<Target> target = call.lock()) target->OnDrained();
  }
}

CallContext::CallContext(const RpcOptions& rpc_options, Engine* the_engine, const Clock* the_clock,
                         CallEvents* the_events)
    : options(rpc_options),
      engine(the_engine),
      clock(the_clock),
      events(the_events),
      started_at(the_clock->Now()),
      streams(the_engine->host_pool().total_bytes() / 2),
      shares(rpc_options.caller_limits),
      budget(static_cast<int>(std::clamp<int64_t>(
          rpc_options.receive_bytes / std::max<int64_t>(1, rpc_options.max_message_bytes), 1,
          1 << 20))),
      // Every call in flight may have all its parts queued.
      decode_pool("decode", std::max(1, rpc_options.decode_threads),
                  static_cast<size_t>(rpc_options.max_inflight) * 16 + 64) {}

}  // namespace tcgemm
