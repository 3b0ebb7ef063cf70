// Small files that flags name.
#ifndef TCGEMM_SERVER_SECURITY_READ_FILE_H_
#define TCGEMM_SERVER_SECURITY_READ_FILE_H_

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"

namespace tcgemm {

// A file and the flag that names it, for messages.
struct NamedFile {
  const char* flag;
  const std::string& path;
};

// Of files that flags name; --config too.
inline constexpr size_t kMaxSmallFileBytes = size_t{1} << 20;

// Words for what is there and is no regular file: a pipe without a writer would keep its reader for
// ever. Empty for others.
std::string CheckRegularFile(const std::string& path);

// NOT_FOUND, PERMISSION_DENIED or INVALID_ARGUMENT, naming the flag, the file and what is wrong,
// for one that cannot be read, is no regular file or holds more than kMaxSmallFileBytes.
absl::StatusOr<std::string> ReadSmallFile(const NamedFile& file);

}  // namespace tcgemm

#endif  // TCGEMM_SERVER_SECURITY_READ_FILE_H_
