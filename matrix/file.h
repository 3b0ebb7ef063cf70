// Files as matrix/ reads and writes them. Internal to matrix/npy.cc and matrix/safetensors.cc.
#ifndef TCGEMM_MATRIX_FILE_H_
#define TCGEMM_MATRIX_FILE_H_

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "matrix/matrix_view.h"

namespace tcgemm {

struct CloseFile {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, CloseFile>;

struct OpenedFile {
  File file;
  int64_t bytes = 0;
};

// INVALID_ARGUMENT "path: what".
absl::Status FileError(const std::string& path, absl::string_view what);

// A regular file; never waits (a named pipe is refused). NOT_FOUND when there is none, the code of
// errno when the system refuses, INVALID_ARGUMENT for anything but a regular file.
absl::StatusOr<OpenedFile> OpenForReading(const std::string& path);

// The next `bytes` bytes. INVALID_ARGUMENT, calling them `what`, when the file ends before; the
// code of errno when it cannot be read.
absl::Status ReadBytes(std::FILE* file, const std::string& path, absl::string_view what,
                       size_t bytes, void* out);

// What `write` writes: into a temporary file beside `path`, then renamed to it, so that a reader
// never sees half a file. The status of `write` or the code of errno, naming `path`; then nothing
// is left behind.
absl::Status ReplaceFile(const std::string& path,
                         absl::FunctionRef<absl::Status(std::FILE*)> write);

// `header`, then the elements of op(view) in C order, dense. The code of errno when it fails.
absl::Status WriteMatrix(std::FILE* file, absl::string_view header, const MatrixView& view);

}  // namespace tcgemm

#endif  // TCGEMM_MATRIX_FILE_H_
