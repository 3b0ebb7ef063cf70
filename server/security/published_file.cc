#include "server/security/published_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tcgemm {
namespace {

absl::Status Failed(const char* what) {
  const std::string message = absl::StrCat(what, ": ", std::strerror(errno));
  if (errno == ENOMEM || errno == EMFILE || errno == ENFILE) {
    return absl::ResourceExhaustedError(message);
  }
  return absl::InternalError(message);
}

absl::Status Write(int fd, const std::string& text, int64_t modified) {
  size_t written = 0;
  while (written < text.size()) {
    const ssize_t now = write(fd, text.data() + written, text.size() - written);
    if (now < 0 && errno == EINTR) continue;
    if (now <= 0) return Failed("cannot write to a memory file");
    written += static_cast<size_t>(now);
  }
  const timespec times[2] = {{.tv_sec = modified}, {.tv_sec = modified}};
  if (fchmod(fd, S_IRUSR) != 0 || futimens(fd, times) != 0) return Failed("memory file");
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<PublishedFile>> PublishedFile::Create(const std::string& text) {
  const int fd = memfd_create("tcgemm-published", MFD_CLOEXEC);
  if (fd < 0) return Failed("memfd_create");
  std::unique_ptr<PublishedFile> file(new PublishedFile(fd));
  TCGEMM_RETURN_IF_ERROR(Write(fd, text, file->modified_));
  // Whoever opens it later could only say that it is not there.
  if (access(file->path().c_str(), R_OK) != 0) return Failed("certificates need /proc/self/fd");
  return file;
}

PublishedFile::PublishedFile(int fd)
    : fd_(fd), path_(absl::StrCat("/proc/self/fd/", fd)), modified_(std::time(nullptr)) {}

PublishedFile::~PublishedFile() { close(fd_); }

absl::Status PublishedFile::Replace(const std::string& text) {
  const int fd = memfd_create("tcgemm-published", MFD_CLOEXEC);
  if (fd < 0) return Failed("memfd_create");
  const int64_t modified = std::max<int64_t>(modified_ + 1, std::time(nullptr));
  absl::Status written = Write(fd, text, modified);
  // The path now leads to the other file; whoever has the old one open reads on in it.
  if (written.ok() && dup3(fd, fd_, O_CLOEXEC) < 0) written = Failed("dup3");
  if (written.ok()) modified_ = modified;
  close(fd);
  return written;
}

}  // namespace tcgemm
