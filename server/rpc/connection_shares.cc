#include "server/rpc/connection_shares.h"

#include <sys/stat.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace tcgemm {
namespace {

// No socket has 0.
ino_t InodeOf(int fd) {
  struct stat about = {};
  return fstat(fd, &about) == 0 ? about.st_ino : 0;
}

}  // namespace

ConnectionShares::ConnectionShares(std::vector<std::string> listeners, const ConnectionLimit& limit,
                                   const Clock* clock)
    : limit_(limit),
      share_(limit.connections / 2 / std::max(1, static_cast<int>(listeners.size()))),
      clock_(clock) {
  for (std::string& name : listeners) listeners_.push_back({.name = std::move(name)});
}

bool ConnectionShares::Admit(size_t listener, int fd) {
  const ino_t inode = InodeOf(fd);
  MutexLock lock(&mutex_);
  if (const auto closed = connections_.find(fd); closed != connections_.end()) {
    --listeners_[closed->second.listener].open;
    connections_.erase(closed);
  }
  if (!HasRoom(listener)) ForgetClosed();
  if (!HasRoom(listener)) return false;
  connections_.insert({fd, {.listener = listener, .inode = inode}});
  ++listeners_[listener].open;
  return true;
}

bool ConnectionShares::HasRoom(size_t listener) const {
  if (listeners_[listener].open < share_) return true;
  int taken = 0;
  for (const Listener& each : listeners_) taken += std::max(each.open, share_);
  return taken < limit_.connections;
}

void ConnectionShares::ForgetClosed() {
  const TimePoint now = clock_->Now();
  if (swept_at_.has_value() && now - *swept_at_ < kSweepInterval) return;
  swept_at_ = now;
  for (auto it = connections_.begin(); it != connections_.end();) {
    const Connection& connection = it->second;
    if (InodeOf(it->first) == connection.inode) {
      ++it;
      continue;
    }
    --listeners_[connection.listener].open;
    it = connections_.erase(it);
  }
}

std::optional<std::string> ConnectionShares::OnRefused(size_t listener) {
  const TimePoint now = clock_->Now();
  MutexLock lock(&mutex_);
  Listener& refusing = listeners_[listener];
  ++refusing.refused_since_line;
  if (refusing.last_line.has_value() && now - *refusing.last_line < kLogInterval) {
    return std::nullopt;
  }
  refusing.last_line = now;
  int open = 0;
  for (const Listener& each : listeners_) open += each.open;
  return absl::StrCat(refusing.name, ": ", std::exchange(refusing.refused_since_line, 0),
                      " connections refused: it has ", refusing.open, " of the ", open,
                      " that are open, limit ", limit_.connections, ", of which ", share_,
                      " are kept for each listener (the limit of open files is ", limit_.open_files,
                      ")");
}

}  // namespace tcgemm
