#include "server/security/read_file.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace tcgemm {

std::string CheckRegularFile(const std::string& path) {
  struct stat about = {};
  if (stat(path.c_str(), &about) != 0 || S_ISREG(about.st_mode)) return "";
  return absl::StrCat(path, " is not a regular file");
}

absl::StatusOr<std::string> ReadSmallFile(const NamedFile& file) {
  if (const std::string wrong = CheckRegularFile(file.path); !wrong.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(file.flag, " ", wrong));
  }
  std::ifstream stream(file.path, std::ios::binary);
  std::string text(kMaxSmallFileBytes + 1, '\0');
  if (stream) stream.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (!stream.is_open() || stream.bad() || (stream.fail() && !stream.eof())) {
    const int error = errno;
    const std::string message = absl::StrCat(file.flag, " ", file.path, ": ", std::strerror(error));
    if (error == ENOENT || error == ENOTDIR) return absl::NotFoundError(message);
    if (error == EACCES || error == EPERM) return absl::PermissionDeniedError(message);
    return absl::InvalidArgumentError(message);
  }
  text.resize(static_cast<size_t>(stream.gcount()));
  if (text.size() > kMaxSmallFileBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(file.flag, " ", file.path, ": has more than ", kMaxSmallFileBytes, " bytes"));
  }
  return text;
}

}  // namespace tcgemm
