// A cursor over protobuf's wire format in bytes that lie in several pieces.
//
// Source: https://protobuf.dev/programming-guides/encoding/. Tags, varints and values may straddle
// pieces. Every read fails, and keeps failing, once the bytes do not parse: check ok() at the end.
#ifndef TCGEMM_CLIENT_WIRE_READER_H_
#define TCGEMM_CLIENT_WIRE_READER_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace tcgemm::client {

enum class WireType { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

constexpr uint32_t WireTag(uint32_t field, WireType type) {
  return field << 3 | static_cast<uint32_t>(type);
}

// Copyable: a copy is a bookmark. The pieces must outlive it.
class WireReader {
 public:
  WireReader() = default;
  explicit WireReader(absl::Span<const absl::string_view> pieces);

  bool ok() const { return ok_; }
  size_t remaining() const { return remaining_; }

  // The next field's tag, or 0 at the end or when it does not parse (0 is no valid tag).
  uint32_t ReadTag();
  uint64_t ReadVarint();
  uint64_t ReadFixed64();
  uint32_t ReadFixed32();
  // A length, and a reader of that many bytes, which are skipped here.
  WireReader ReadMessage();
  // For a field that nobody knows. Groups, which proto3 does not write, do not parse.
  void Skip(uint32_t tag);
  // Copies all that remains to `out`, of at least remaining() bytes.
  void CopyTo(void* out);
  // The same, and the CRC32C of it.
  uint32_t CopyToWithCrc32c(void* out);
  // All that remains.
  std::string ReadRest();

 private:
  void Fail();
  bool ReadByte(uint8_t& byte);
  // `count` ≤ 8 bytes, the lowest first.
  uint64_t ReadFixed(size_t count);
  // Passes `count` ≤ remaining_ bytes, calling use(bytes, how many) for each part.
  template <typename Use>
  void Pass(size_t count, Use use);
  // The same, copying them to `out` unless it is null.
  void Advance(size_t count, char* out);

  absl::Span<const absl::string_view> pieces_;  // the first is the one being read
  size_t offset_ = 0;                           // in it
  size_t remaining_ = 0;
  bool ok_ = true;
};

}  // namespace tcgemm::client

#endif  // TCGEMM_CLIENT_WIRE_READER_H_
