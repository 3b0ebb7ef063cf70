#include "base/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace tcgemm {
namespace {

// The polynomial 0x1edc6f41, bits reversed, as the CRC takes the lowest bit first.
constexpr uint32_t kPolynomial = 0x82f63b78;

constexpr std::array<uint32_t, 256> MakeTable() {
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? kPolynomial : 0);
    table[byte] = crc;
  }
  return table;
}

constexpr std::array<uint32_t, 256> kTable = MakeTable();

#if defined(__x86_64__)
// a·b modulo the polynomial, bits reversed: the highest bit is x^0.
constexpr uint32_t Multiply(uint32_t a, uint32_t b) {
  uint32_t product = 0;
  for (uint32_t bit = uint32_t{1} << 31; bit != 0; bit >>= 1) {
    if ((a & bit) != 0) product ^= b;
    b = (b >> 1) ^ ((b & 1) != 0 ? kPolynomial : 0);
  }
  return product;
}

constexpr uint32_t PowerOfX(uint64_t exponent) {
  uint32_t power = uint32_t{1} << 31;
  for (uint32_t square = uint32_t{1} << 30; exponent != 0; exponent >>= 1) {
    if ((exponent & 1) != 0) power = Multiply(power, square);
    square = Multiply(square, square);
  }
  return power;
}

// One instruction takes eight bytes and its result is there three cycles later, so three blocks go
// side by side. What the first two add to the third is what zeros of its length would make of them.
constexpr size_t kBlockBytes = 1024;

using ShiftTable = std::array<std::array<uint32_t, 256>, 4>;

constexpr ShiftTable MakeShiftTable() {
  const uint32_t power = PowerOfX(8 * kBlockBytes);
  ShiftTable table{};
  for (uint32_t place = 0; place < 4; ++place) {
    for (uint32_t byte = 0; byte < 256; ++byte) {
      table[place][byte] = Multiply(power, byte << (8 * place));
    }
  }
  return table;
}

constexpr ShiftTable kShift = MakeShiftTable();

// The state after kBlockBytes zeros.
uint32_t ShiftBlock(uint64_t state) {
  return kShift[0][state & 0xff] ^ kShift[1][(state >> 8) & 0xff] ^
         kShift[2][(state >> 16) & 0xff] ^ kShift[3][(state >> 24) & 0xff];
}

__attribute__((target("sse4.2"))) uint64_t ExtendByThreeBlocks(uint64_t state, const uint8_t* at) {
  uint64_t second = 0;
  uint64_t third = 0;
  for (size_t i = 0; i < kBlockBytes; i += 8) {
    uint64_t words[3];
    std::memcpy(&words[0], at + i, 8);
    std::memcpy(&words[1], at + i + kBlockBytes, 8);
    std::memcpy(&words[2], at + i + 2 * kBlockBytes, 8);
    state = _mm_crc32_u64(state, words[0]);
    second = _mm_crc32_u64(second, words[1]);
    third = _mm_crc32_u64(third, words[2]);
  }
  return ShiftBlock(ShiftBlock(state) ^ second) ^ third;
}

__attribute__((target("sse4.2"))) uint32_t ExtendByInstruction(uint32_t crc, const void* data,
                                                               size_t bytes) {
  const auto* at = static_cast<const uint8_t*>(data);
  uint64_t state = ~crc;
  for (; bytes >= 3 * kBlockBytes; at += 3 * kBlockBytes, bytes -= 3 * kBlockBytes) {
    state = ExtendByThreeBlocks(state, at);
  }
  for (; bytes >= 8; at += 8, bytes -= 8) {
    uint64_t word;
    std::memcpy(&word, at, 8);
    state = _mm_crc32_u64(state, word);
  }
  auto last = static_cast<uint32_t>(state);
  for (; bytes > 0; ++at, --bytes) last = _mm_crc32_u8(last, *at);
  return ~last;
}

// The copy is free: the CRC's chain of dependent instructions leaves the ports that it needs idle.
__attribute__((target("sse4.2"))) uint32_t CopyByInstruction(uint32_t crc, void* to,
                                                             const void* from, size_t bytes) {
  const auto* at = static_cast<const uint8_t*>(from);
  auto* out = static_cast<uint8_t*>(to);
  uint64_t state = ~crc;
  for (; bytes >= 8; at += 8, out += 8, bytes -= 8) {
    uint64_t word;
    std::memcpy(&word, at, 8);
    std::memcpy(out, &word, 8);
    state = _mm_crc32_u64(state, word);
  }
  auto last = static_cast<uint32_t>(state);
  for (; bytes > 0; ++at, ++out, --bytes) {
    *out = *at;
    last = _mm_crc32_u8(last, *at);
  }
  return ~last;
}

bool HasInstruction() {
  static const bool has_instruction = __builtin_cpu_supports("sse4.2");
  return has_instruction;
}
#endif

}  // namespace

uint32_t ExtendCrc32cByTable(uint32_t crc, const void* data, size_t bytes) {
  const auto* at = static_cast<const uint8_t*>(data);
  crc = ~crc;
  for (; bytes > 0; ++at, --bytes) crc = (crc >> 8) ^ kTable[(crc ^ *at) & 0xff];
  return ~crc;
}

uint32_t ExtendCrc32c(uint32_t crc, const void* data, size_t bytes) {
#if defined(__x86_64__)
  if (HasInstruction()) return ExtendByInstruction(crc, data, bytes);
#endif
  return ExtendCrc32cByTable(crc, data, bytes);
}

uint32_t CopyWithCrc32c(uint32_t crc, void* to, const void* from, size_t bytes) {
#if defined(__x86_64__)
  if (HasInstruction()) return CopyByInstruction(crc, to, from, bytes);
#endif
  if (bytes > 0) std::memcpy(to, from, bytes);
  return ExtendCrc32cByTable(crc, from, bytes);
}

}  // namespace tcgemm
