// Text under a path of this process alone, replaced as a whole: no disk holds it, so that a private
// key is written nowhere and the file system may be read-only.
#ifndef TCGEMM_SERVER_SECURITY_PUBLISHED_FILE_H_
#define TCGEMM_SERVER_SECURITY_PUBLISHED_FILE_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tcgemm {

// Thread-safe for those who open the path; Replace is one thread's at a time.
class PublishedFile {
 public:
  // INTERNAL or RESOURCE_EXHAUSTED when the system gives no memory file.
  static absl::StatusOr<std::unique_ptr<PublishedFile>> Create(const std::string& text);
  ~PublishedFile();
  PublishedFile(const PublishedFile&) = delete;
  PublishedFile& operator=(const PublishedFile&) = delete;

  // For open(2) in this process, while this lives.
  const std::string& path() const { return path_; }
  // Whoever opens the path sees the old text or the new one. Its modification time, in seconds, is
  // always a later one than before: gRPC tells by it whether two reads belong together.
  absl::Status Replace(const std::string& text);

 private:
  explicit PublishedFile(int fd);

  const int fd_;
  const std::string path_;
  int64_t modified_;  // seconds since the epoch
};

}  // namespace tcgemm

#endif  // TCGEMM_SERVER_SECURITY_PUBLISHED_FILE_H_
