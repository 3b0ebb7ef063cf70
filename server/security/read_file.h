// Small files that flags name.
#ifndef TCGEMM_SERVER_SECURITY_READ_FILE_H_
#define TCGEMM_SERVER_SECURITY_READ_FILE_H_

#include <string>

#include "absl/status/statusor.h"

namespace tcgemm {

// A file and the flag that names it, for messages.
struct NamedFile {
  const char* flag;
  const std::string& path;
};

// NOT_FOUND, PERMISSION_DENIED or INVALID_ARGUMENT, naming the flag, the file and what is wrong,
// for one that cannot be read or holds more than 1 MiB.
absl::StatusOr<std::string> ReadSmallFile(const NamedFile& file);

}  // namespace tcgemm

#endif  // TCGEMM_SERVER_SECURITY_READ_FILE_H_
