// Hugging Face's .safetensors files: named tensors behind one JSON header. 2-D, BF16 and F32.
//
// Source: https://github.com/huggingface/safetensors, "Format". Row-major, little-endian. Only the
// header and the tensor asked for are read, whatever else the file holds.
#ifndef TCGEMM_MATRIX_SAFETENSORS_H_
#define TCGEMM_MATRIX_SAFETENSORS_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "matrix/matrix.h"
#include "matrix/matrix_view.h"

namespace tcgemm {

// What "FILE.safetensors" or "FILE.safetensors:TENSOR" names.
struct SafetensorsPath {
  std::string file;
  std::string tensor;  // empty: the only one
};

// None when `path` is neither. The first ".safetensors" with a ':' or nothing behind it ends FILE;
// TENSOR may hold anything, more colons too.
std::optional<SafetensorsPath> ParseSafetensorsPath(absl::string_view path);

struct SafetensorsOptions {
  int64_t max_bytes = int64_t{1} << 40;  // of the tensor
  // The format's own limit is the default. Parsing takes a few times as much memory.
  int64_t max_header_bytes = 100'000'000;
};

// NOT_FOUND when there is no such file, the code of errno when the system refuses;
// INVALID_ARGUMENT, naming the file, the tensor, the field, what was found and what is supported,
// for anything else: no such tensor, several and none named, another type, not two dimensions,
// data_offsets that do not fit the shape or are not a multiple of the element's size, and a file
// that breaks the format anywhere (truncated, trailing bytes, overlaps, holes, a name twice, a
// header too long or not JSON).
absl::StatusOr<Matrix> ReadSafetensors(const SafetensorsPath& path,
                                       const SafetensorsOptions& options);

// Writes a file with this tensor alone, of op(view): BF16 or F32. An empty name becomes "matrix".
// As a whole: a temporary file beside it, then a rename. INVALID_ARGUMENT for other types and for
// names that are not UTF-8; the code of errno, naming the file, when it cannot be written, and then
// nothing is left behind.
absl::Status WriteSafetensors(const SafetensorsPath& path, const MatrixView& view);

}  // namespace tcgemm

#endif  // TCGEMM_MATRIX_SAFETENSORS_H_
