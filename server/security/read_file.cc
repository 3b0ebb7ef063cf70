#include "server/security/read_file.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace tcgemm {
namespace {

constexpr std::streamsize kMaxFileBytes = 1 << 20;

}  // namespace

absl::StatusOr<std::string> ReadSmallFile(const NamedFile& file) {
  // A pipe without a writer would keep the caller for ever.
  struct stat about = {};
  if (stat(file.path.c_str(), &about) == 0 && !S_ISREG(about.st_mode)) {
    return absl::InvalidArgumentError(
        absl::StrCat(file.flag, " ", file.path, ": is not a regular file"));
  }
  std::ifstream stream(file.path, std::ios::binary);
  std::string text(static_cast<size_t>(kMaxFileBytes) + 1, '\0');
  if (stream) stream.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (!stream.is_open() || stream.bad() || (stream.fail() && !stream.eof())) {
    const int error = errno;
    const std::string message = absl::StrCat(file.flag, " ", file.path, ": ", std::strerror(error));
    if (error == ENOENT || error == ENOTDIR) return absl::NotFoundError(message);
    if (error == EACCES || error == EPERM) return absl::PermissionDeniedError(message);
    return absl::InvalidArgumentError(message);
  }
  if (stream.gcount() > kMaxFileBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(file.flag, " ", file.path, ": has more than ", kMaxFileBytes, " bytes"));
  }
  text.resize(static_cast<size_t>(stream.gcount()));
  return text;
}

}  // namespace tcgemm
