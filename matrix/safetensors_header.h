// The header of a .safetensors file: a JSON object. Internal to matrix/safetensors.cc.
#ifndef TCGEMM_MATRIX_SAFETENSORS_HEADER_H_
#define TCGEMM_MATRIX_SAFETENSORS_HEADER_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tcgemm {

// At most so many tensors, which bounds the memory that a header can take to some 200 MiB.
inline constexpr size_t kMaxSafetensors = 1'000'000;

struct SafetensorsEntry {
  std::string name;
  std::string dtype;           // any: "BF16", "F32", "I64", …
  std::vector<int64_t> shape;  // each ≥ 0, at most 64
  // Bytes from the end of the header.
  int64_t begin = 0;
  int64_t end = 0;
};

// Checks what concerns the file as a whole: the grammar, that no name comes twice, and that the
// tensors fill the `buffer_bytes` after the header without an overlap, a hole or a rest. Whether a
// tensor's type and shape agree with its bytes is for who reads that tensor. In the order of their
// bytes. INVALID_ARGUMENT names the tensor, the field, the value and the limit; it does not know
// the file.
absl::StatusOr<std::vector<SafetensorsEntry>> ParseSafetensorsHeader(absl::string_view text,
                                                                     int64_t buffer_bytes);

// In quotes, escaped, cut to a length that fits a message.
std::string QuoteTensorName(absl::string_view name);

// The whole start of a file, its length included, with one tensor from byte 0 on: a multiple of 8
// bytes. INVALID_ARGUMENT for a name that is not UTF-8, or "__metadata__".
absl::StatusOr<std::string> MakeSafetensorsHeader(const SafetensorsEntry& entry);

}  // namespace tcgemm

#endif  // TCGEMM_MATRIX_SAFETENSORS_HEADER_H_
