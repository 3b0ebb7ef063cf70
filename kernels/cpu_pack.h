// The copies and conversions around the CPU's inner kernels, for whatever vectors the CPU has.
// Not public. Bits are the same on every instruction set: all is integer work or exact.
#ifndef TCGEMM_KERNELS_CPU_PACK_H_
#define TCGEMM_KERNELS_CPU_PACK_H_

#include <cstdint>

namespace tcgemm {

// What the functions here and in cpu_plain.cc were compiled for and this CPU can run.
enum class CpuVectors { kBaseline, kAvx2, kAvx512 };
CpuVectors DetectCpuVectors();
const char* CpuVectorsName(CpuVectors vectors);  // "baseline", "avx2", "avx512"

// rows × cols bf16 elements, `ld` apart, going to padded_rows × padded_cols dense ones.
struct PackShape {
  int64_t ld;
  int rows;
  int cols;
  int padded_rows;
  int padded_cols;
};

// Copies and pads with zeros. row_subnormal[i] of the first `rows` says whether row i holds a
// nonzero subnormal; returns whether any does.
bool PackRows(const uint16_t* source, const PackShape& shape, uint16_t* destination,
              uint8_t* row_subnormal);
// The same of the transpose: the source is cols × rows, `shape` speaks of the destination.
bool PackColumns(const uint16_t* source, const PackShape& shape, uint16_t* destination,
                 uint8_t* row_subnormal);

// bf16 to fp32, exact.
void Widen(const uint16_t* source, int64_t count, float* destination);

// The epilogue of one row: rounds to nearest even (bf16) or copies (fp32), NaN becomes canonical.
// Returns whether any result is NaN or Inf.
bool StoreBf16(const float* source, int64_t count, uint16_t* destination);
bool StoreFp32(const float* source, int64_t count, uint32_t* destination);

}  // namespace tcgemm

#endif  // TCGEMM_KERNELS_CPU_PACK_H_
