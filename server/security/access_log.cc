#include "server/security/access_log.h"

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "base/status_macros.h"

namespace tcgemm {
namespace {

constexpr mode_t kFileMode = 0640;

double Milliseconds(Nanos time) { return static_cast<double>(time.count()) / 1e6; }

const char* NameOf(PeerKind peer) {
  switch (peer) {
    case PeerKind::kUnix:
      return "unix";
    case PeerKind::kTcp:
      return "tcp";
    case PeerKind::kTls:
      return "tls";
  }
  return "?";
}

// What cannot be written is lost: there is nobody to tell who could mend it faster than its owner.
void WriteAll(int fd, const std::string& text) {
  size_t written = 0;
  while (written < text.size()) {
    const ssize_t now = write(fd, text.data() + written, text.size() - written);
    if (now < 0 && errno == EINTR) continue;
    if (now <= 0) return;
    written += static_cast<size_t>(now);
  }
}

absl::StatusOr<int> OpenFile(const std::string& path) {
  const int fd = path == "-"
                     ? fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 0)
                     : open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, kFileMode);
  if (fd >= 0) return fd;
  const int error = errno;
  const std::string message = absl::StrCat("--access-log ", path, ": ", std::strerror(error));
  if (error == ENOENT || error == ENOTDIR) return absl::NotFoundError(message);
  if (error == EACCES || error == EPERM) return absl::PermissionDeniedError(message);
  return absl::InvalidArgumentError(message);
}

}  // namespace

std::string FormatAccess(const AccessEntry& entry, int64_t unix_ms) {
  nlohmann::ordered_json line = {
      {"time", absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", absl::FromUnixMillis(unix_ms),
                                absl::UTCTimeZone())},
      {"method", entry.method},
      {"code", absl::StatusCodeToString(entry.code)},
      {"duration_ms", Milliseconds(entry.duration)},
      {"caller", entry.caller.identity},
      {"peer", NameOf(entry.peer)},
      {"bytes_in", entry.bytes_in},
      {"bytes_out", entry.bytes_out}};
  if (entry.shape.has_value()) {
    line["m"] = entry.shape->m;
    line["n"] = entry.shape->n;
    line["k"] = entry.shape->k;
  }
  if (entry.stages.has_value()) {
    nlohmann::ordered_json stages;
    for (int i = 0; i < kStageCount; ++i) {
      stages[std::string(StageName(static_cast<Stage>(i)))] =
          Milliseconds((*entry.stages)[static_cast<size_t>(i)]);
    }
    line["stages_ms"] = std::move(stages);
  }
  if (!entry.trace_id.empty()) line["trace_id"] = entry.trace_id;
  return line.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

std::string TraceIdOf(std::string_view traceparent) {
  const std::vector<std::string> parts =
      absl::StrSplit(absl::string_view(traceparent.data(), traceparent.size()), '-');
  if (parts.size() < 4 || parts[0].size() != 2 || parts[1].size() != 32 || parts[2].size() != 16) {
    return "";
  }
  const std::string& id = parts[1];
  const auto is_hex = [](char c) {
    return absl::ascii_isdigit(static_cast<unsigned char>(c)) || (c >= 'a' && c <= 'f');
  };
  if (!std::all_of(id.begin(), id.end(), is_hex)) return "";
  return id.find_first_not_of('0') == std::string::npos ? "" : id;
}

absl::StatusOr<std::unique_ptr<AccessLog>> AccessLog::Open(const std::string& path) {
  TCGEMM_ASSIGN_OR_RETURN(const int fd, OpenFile(path));
  return std::unique_ptr<AccessLog>(new AccessLog(path, fd));
}

AccessLog::AccessLog(std::string path, int fd) : path_(std::move(path)), fd_(fd) {
  thread_ = std::thread([this] { Loop(); });
  pthread_setname_np(thread_.native_handle(), "access-log");
}

AccessLog::~AccessLog() {
  {
    MutexLock lock(&mutex_);
    ended_ = true;
    changed_.NotifyAll();
  }
  thread_.join();
  MutexLock lock(&mutex_);
  close(fd_);
  if (next_fd_ >= 0) close(next_fd_);
}

void AccessLog::Write(const AccessEntry& entry) {
  std::string line = absl::StrCat(FormatAccess(entry, UnixMilliseconds()), "\n");
  MutexLock lock(&mutex_);
  if (waiting_.size() >= kMaxWaitingLines) {
    ++dropped_;
    return;
  }
  waiting_.push_back(std::move(line));
  changed_.NotifyAll();
}

absl::Status AccessLog::Reopen() {
  if (path_ == "-") return absl::OkStatus();
  TCGEMM_ASSIGN_OR_RETURN(const int fd, OpenFile(path_));
  MutexLock lock(&mutex_);
  if (next_fd_ >= 0) close(next_fd_);
  next_fd_ = fd;
  changed_.NotifyAll();
  return absl::OkStatus();
}

void AccessLog::Loop() {
  while (true) {
    std::string text;
    int fd;
    {
      MutexLock lock(&mutex_);
      while (waiting_.empty() && next_fd_ < 0 && !ended_) changed_.Wait(&mutex_);
      if (next_fd_ >= 0) {
        close(fd_);
        fd_ = std::exchange(next_fd_, -1);
      }
      if (waiting_.empty() && ended_) return;
      for (const std::string& line : waiting_) text += line;
      waiting_.clear();
      if (dropped_ > 0) absl::StrAppend(&text, "{\"dropped\":", dropped_, "}\n");
      dropped_ = 0;
      fd = fd_;  // only this thread replaces it
    }
    WriteAll(fd, text);
  }
}

}  // namespace tcgemm
