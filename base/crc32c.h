// CRC32C (Castagnoli), as in iSCSI: RFC 3720, section 12.1 and appendix B.4.
//
// Thread-safe: no state. On x86 with SSE4.2 one instruction takes eight bytes; elsewhere a table
// does one byte at a time. Debian 12's Abseil has no crc.
#ifndef TCGEMM_BASE_CRC32C_H_
#define TCGEMM_BASE_CRC32C_H_

#include <cstddef>
#include <cstdint>

namespace tcgemm {

// The CRC of `before` followed by `bytes` bytes at `data`, where `crc` is that of `before`; 0 is
// the CRC of nothing. So a message that lies in pieces is summed piece by piece.
uint32_t ExtendCrc32c(uint32_t crc, const void* data, size_t bytes);

inline uint32_t Crc32c(const void* data, size_t bytes) { return ExtendCrc32c(0, data, bytes); }

// Copies, and gives what ExtendCrc32c gives, in the time of that alone. The two must not overlap.
uint32_t CopyWithCrc32c(uint32_t crc, void* to, const void* from, size_t bytes);

// The table alone, for the test that compares both.
uint32_t ExtendCrc32cByTable(uint32_t crc, const void* data, size_t bytes);

}  // namespace tcgemm

#endif  // TCGEMM_BASE_CRC32C_H_
