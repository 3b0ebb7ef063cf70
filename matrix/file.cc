#include "matrix/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"

namespace tcgemm {
namespace {

// A name that no other writer uses, in the same folder: rename() does not cross file systems.
std::string TemporaryName(const std::string& path) {
  static std::atomic<int64_t> next{0};
  return absl::StrCat(path, ".tmp-", getpid(), "-", next.fetch_add(1));
}

}  // namespace

absl::Status FileError(const std::string& path, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", what));
}

absl::StatusOr<OpenedFile> OpenForReading(const std::string& path) {
  // O_NONBLOCK: a named pipe must be refused below, not waited for here.
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) return absl::ErrnoToStatus(errno, absl::StrCat("opening ", path));
  OpenedFile opened{.file = File(fdopen(descriptor, "rb"))};
  if (opened.file == nullptr) {
    const int error = errno;
    close(descriptor);
    return absl::ErrnoToStatus(error, absl::StrCat("opening ", path));
  }
  struct stat status;
  if (fstat(descriptor, &status) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("reading ", path));
  }
  if (!S_ISREG(status.st_mode)) return FileError(path, "not a regular file");
  opened.bytes = status.st_size;
  return opened;
}

absl::Status ReadBytes(std::FILE* file, const std::string& path, absl::string_view what,
                       size_t bytes, void* out) {
  const size_t read = bytes == 0 ? 0 : std::fread(out, 1, bytes, file);
  if (read == bytes) return absl::OkStatus();
  if (std::ferror(file)) return absl::ErrnoToStatus(errno, absl::StrCat("reading ", path));
  return FileError(path, absl::StrCat("truncated: ", what, " takes ", bytes,
                                      " bytes, the file has ", read, " of them"));
}

absl::Status ReplaceFile(const std::string& path,
                         absl::FunctionRef<absl::Status(std::FILE*)> write) {
  const std::string temporary = TemporaryName(path);
  const int descriptor = open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (descriptor < 0) return absl::ErrnoToStatus(errno, absl::StrCat("creating ", temporary));
  File file(fdopen(descriptor, "wb"));
  absl::Status status = absl::OkStatus();
  if (file == nullptr) {
    status = absl::ErrnoToStatus(errno, "opening");
    close(descriptor);
  } else {
    status = write(file.get());
    // A full disk may show only here.
    if (std::fclose(file.release()) != 0 && status.ok()) {
      status = absl::ErrnoToStatus(errno, "closing");
    }
  }
  if (status.ok() && std::rename(temporary.c_str(), path.c_str()) != 0) {
    status = absl::ErrnoToStatus(errno, "renaming to it");
  }
  if (status.ok()) return status;
  unlink(temporary.c_str());
  return absl::Status(status.code(), absl::StrCat(path, ": ", status.message()));
}

absl::Status WriteMatrix(std::FILE* file, absl::string_view header, const MatrixView& view) {
  bool ok = std::fwrite(header.data(), 1, header.size(), file) == header.size();
  const size_t size = DTypeSize(view.dtype);
  std::vector<std::byte> gathered(view.transposed ? view.op_cols() * size : 0);
  const std::byte* data = static_cast<const std::byte*>(view.data);
  for (int64_t i = 0; ok && view.op_cols() > 0 && i < view.op_rows(); ++i) {
    const std::byte* row = data + view.IndexOf(i, 0) * size;
    if (view.transposed) {
      for (int64_t j = 0; j < view.op_cols(); ++j) {
        std::memcpy(gathered.data() + j * size, data + view.IndexOf(i, j) * size, size);
      }
      row = gathered.data();
    }
    const size_t cols = static_cast<size_t>(view.op_cols());
    ok = std::fwrite(row, size, cols, file) == cols;
  }
  if (!ok || std::fflush(file) != 0) return absl::ErrnoToStatus(errno, "writing");
  return absl::OkStatus();
}

}  // namespace tcgemm
