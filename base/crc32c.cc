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
__attribute__((target("sse4.2"))) uint32_t ExtendByInstruction(uint32_t crc, const void* data,
                                                               size_t bytes) {
  const auto* at = static_cast<const uint8_t*>(data);
  uint64_t state = ~crc;
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
