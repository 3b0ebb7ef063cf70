// Element types of the matrices that tcgemm multiplies.
#ifndef TCGEMM_MATRIX_DTYPE_H_
#define TCGEMM_MATRIX_DTYPE_H_

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace tcgemm {

// kBf16: brain floating point, the upper 16 bits of an IEEE-754 binary32, little-endian.
enum class DType : uint8_t { kBf16 = 1, kFp32 = 2, kInt8 = 3, kInt32 = 4 };

constexpr size_t DTypeSize(DType dtype) {
  switch (dtype) {
    case DType::kBf16:
      return 2;
    case DType::kFp32:
      return 4;
    case DType::kInt8:
      return 1;
    case DType::kInt32:
      return 4;
  }
  return 0;
}

// "bf16", "fp32", "int8", "int32".
constexpr std::string_view DTypeName(DType dtype) {
  switch (dtype) {
    case DType::kBf16:
      return "bf16";
    case DType::kFp32:
      return "fp32";
    case DType::kInt8:
      return "int8";
    case DType::kInt32:
      return "int32";
  }
  return "?";
}

}  // namespace tcgemm

#endif  // TCGEMM_MATRIX_DTYPE_H_
