#include "kernels/cpu_pack.h"

#include <bit>
#include <cstring>

#include "kernels/cpu_vectors.h"
#include "matrix/bf16.h"

namespace tcgemm {
namespace {

// 1 if `bits` is a subnormal other than zero, without a branch.
TCGEMM_ALWAYS_INLINE uint16_t IsSubnormal(uint16_t bits) {
  const uint16_t magnitude = bits & 0x7fff;
  return static_cast<uint16_t>(magnitude - 1) < 0x7f ? 1 : 0;
}

TCGEMM_ALWAYS_INLINE bool RowHasSubnormal(const uint16_t* row, int count) {
  uint16_t found = 0;
  for (int j = 0; j < count; ++j) found |= IsSubnormal(row[j]);
  return found != 0;
}

TCGEMM_ALWAYS_INLINE void ZeroPadding(const PackShape& shape, uint16_t* destination) {
  if (shape.cols < shape.padded_cols) {
    for (int i = 0; i < shape.rows; ++i) {
      std::memset(destination + int64_t{i} * shape.padded_cols + shape.cols, 0,
                  (shape.padded_cols - shape.cols) * sizeof(uint16_t));
    }
  }
  std::memset(destination + int64_t{shape.rows} * shape.padded_cols, 0,
              int64_t{shape.padded_rows - shape.rows} * shape.padded_cols * sizeof(uint16_t));
}

template <int W>
TCGEMM_ALWAYS_INLINE bool PackRowsBody(const uint16_t* source, const PackShape& shape,
                                       uint16_t* destination, uint8_t* row_subnormal) {
  bool any = false;
  for (int i = 0; i < shape.rows; ++i) {
    uint16_t* row = destination + int64_t{i} * shape.padded_cols;
    std::memcpy(row, source + i * shape.ld, shape.cols * sizeof(uint16_t));
    row_subnormal[i] = RowHasSubnormal(row, shape.cols);
    any |= row_subnormal[i] != 0;
  }
  ZeroPadding(shape, destination);
  return any;
}

// Square pieces, so that the strided side's cache lines are used up while they are there.
template <int W>
TCGEMM_ALWAYS_INLINE bool PackColumnsBody(const uint16_t* source, const PackShape& shape,
                                          uint16_t* destination, uint8_t* row_subnormal) {
  constexpr int kPiece = 32;
  for (int i0 = 0; i0 < shape.rows; i0 += kPiece) {
    const int i1 = i0 + kPiece < shape.rows ? i0 + kPiece : shape.rows;
    for (int j0 = 0; j0 < shape.cols; j0 += kPiece) {
      const int j1 = j0 + kPiece < shape.cols ? j0 + kPiece : shape.cols;
      for (int i = i0; i < i1; ++i) {
        uint16_t* row = destination + int64_t{i} * shape.padded_cols;
        for (int j = j0; j < j1; ++j) row[j] = source[j * shape.ld + i];
      }
    }
  }
  bool any = false;
  for (int i = 0; i < shape.rows; ++i) {
    row_subnormal[i] = RowHasSubnormal(destination + int64_t{i} * shape.padded_cols, shape.cols);
    any |= row_subnormal[i] != 0;
  }
  ZeroPadding(shape, destination);
  return any;
}

template <int W>
TCGEMM_ALWAYS_INLINE void WidenBody(const uint16_t* source, int64_t count, float* destination) {
  for (int64_t i = 0; i < count; ++i) {
    destination[i] = std::bit_cast<float>(static_cast<uint32_t>(source[i]) << 16);
  }
}

constexpr uint32_t kMagnitude = 0x7fffffff;
constexpr uint32_t kInfinity = 0x7f800000;

// Branches of this form become vector selects.
template <int W>
TCGEMM_ALWAYS_INLINE bool StoreBf16Body(const float* source, int64_t count, uint16_t* destination) {
  uint32_t nonfinite = 0;
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t bits = std::bit_cast<uint32_t>(source[i]);
    const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    const bool nan = (bits & kMagnitude) > kInfinity;
    const uint32_t result = nan ? kCanonicalNanBf16.bits : rounded;
    // A finite sum may round to Inf: judge the result.
    nonfinite |= (result & 0x7f80) == 0x7f80 ? 1 : 0;
    destination[i] = static_cast<uint16_t>(result);
  }
  return nonfinite != 0;
}

template <int W>
TCGEMM_ALWAYS_INLINE bool StoreFp32Body(const float* source, int64_t count, uint32_t* destination) {
  uint32_t nonfinite = 0;
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t bits = std::bit_cast<uint32_t>(source[i]);
    const bool nan = (bits & kMagnitude) > kInfinity;
    nonfinite |= (bits & kMagnitude) >= kInfinity ? 1 : 0;
    destination[i] = nan ? kCanonicalNanFp32Bits : bits;
  }
  return nonfinite != 0;
}

}  // namespace

TCGEMM_MULTIVERSION(bool, PackRows,
                    (const uint16_t* source, const PackShape& shape, uint16_t* destination,
                     uint8_t* row_subnormal),
                    (source, shape, destination, row_subnormal))
TCGEMM_MULTIVERSION(bool, PackColumns,
                    (const uint16_t* source, const PackShape& shape, uint16_t* destination,
                     uint8_t* row_subnormal),
                    (source, shape, destination, row_subnormal))
TCGEMM_MULTIVERSION(void, Widen, (const uint16_t* source, int64_t count, float* destination),
                    (source, count, destination))
TCGEMM_MULTIVERSION(bool, StoreBf16, (const float* source, int64_t count, uint16_t* destination),
                    (source, count, destination))
TCGEMM_MULTIVERSION(bool, StoreFp32, (const float* source, int64_t count, uint32_t* destination),
                    (source, count, destination))

CpuVectors DetectCpuVectors() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("fma")) return CpuVectors::kBaseline;
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")) {
    return CpuVectors::kAvx512;
  }
  if (__builtin_cpu_supports("avx2")) return CpuVectors::kAvx2;
#endif
  return CpuVectors::kBaseline;
}

const char* CpuVectorsName(CpuVectors vectors) {
  switch (vectors) {
    case CpuVectors::kAvx512:
      return "avx512";
    case CpuVectors::kAvx2:
      return "avx2";
    case CpuVectors::kBaseline:
      break;
  }
  return "baseline";
}

}  // namespace tcgemm
