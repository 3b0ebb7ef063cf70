// Reads protobuf's wire format where it lies: across the slices that gRPC received, without copying
// them together. Source: https://protobuf.dev/programming-guides/encoding.
#ifndef TCGEMM_SERVER_RPC_WIRE_READER_H_
#define TCGEMM_SERVER_RPC_WIRE_READER_H_

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"

namespace tcgemm {

struct ByteSpan {
  const uint8_t* data = nullptr;
  size_t size = 0;
};

// A position in a message that lies in pieces. Copyable; the pieces must outlive it. Not
// thread-safe.
class WireCursor {
 public:
  explicit WireCursor(absl::Span<const ByteSpan> pieces);

  size_t remaining() const { return remaining_; }
  // Bytes before this position.
  size_t position() const { return position_; }

  // All false when the message ends first; the cursor is then somewhere in between.
  bool ReadByte(uint8_t* byte);
  bool ReadVarint(uint64_t* value);  // false also beyond 10 bytes
  bool ReadFixed32(uint32_t* value);
  bool ReadBytes(void* to, size_t count);
  // The same, past the caches: for bytes that this thread will not read.
  bool StreamBytes(void* to, size_t count);
  bool Skip(size_t count);

 private:
  // The next bytes that lie together, at most `most`; the message has not ended.
  ByteSpan Take(size_t most);
  template <typename Copy>
  bool CopyBytes(void* to, size_t count, Copy copy);
  void SkipEmptyPieces();

  absl::Span<const ByteSpan> pieces_;
  size_t piece_ = 0;   // the current piece …
  size_t offset_ = 0;  // … and the position in it
  size_t remaining_ = 0;
  size_t position_ = 0;
};

enum class WireType : uint8_t {
  kVarint = 0,
  kFixed64 = 1,
  kLengthDelimited = 2,
  kStartGroup = 3,
  kEndGroup = 4,
  kFixed32 = 5,
};

struct WireTag {
  uint32_t field = 0;
  WireType type = WireType::kVarint;
};

// One submessage (or the whole message): fields until `end`.
class WireReader {
 public:
  // Reads `length` bytes from the cursor on, which must have them. `depth`: messages around it.
  WireReader(WireCursor* cursor, size_t length, int depth = 0)
      : cursor_(cursor), end_(cursor->position() + length), depth_(depth) {}

  bool done() const { return cursor_->position() == end_; }
  // False for a malformed tag: more than five bytes, field number 0, wire type 6 or 7.
  bool ReadTag(WireTag* tag);
  bool ReadVarint(uint64_t* value);
  bool ReadFixed32(uint32_t* value);
  bool ReadFloat(float* value);
  // A length prefix that stays inside this message.
  bool ReadLength(size_t* length);
  bool Skip(size_t count);
  // Skips the value of a field that nobody knows, groups included. False also for groups nested
  // deeper than protobuf allows, the messages around them counted.
  bool SkipField(WireTag tag) { return SkipValue(tag, depth_); }
  WireCursor* cursor() { return cursor_; }

 private:
  bool SkipValue(WireTag tag, int depth);
  bool WithinEnd() const { return cursor_->position() <= end_; }

  WireCursor* const cursor_;
  const size_t end_;
  const int depth_;
};

}  // namespace tcgemm

#endif  // TCGEMM_SERVER_RPC_WIRE_READER_H_
