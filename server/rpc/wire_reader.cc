#include "server/rpc/wire_reader.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/stream_copy.h"

namespace tcgemm {
namespace {

// protobuf's own limit on nesting.
constexpr int kMaxDepth = 100;
constexpr size_t kMaxTagBytes = 5;

}  // namespace

WireCursor::WireCursor(absl::Span<const ByteSpan> pieces) : pieces_(pieces) {
  for (const ByteSpan& piece : pieces_) remaining_ += piece.size;
  SkipEmptyPieces();
}

void WireCursor::SkipEmptyPieces() {
  while (piece_ < pieces_.size() && offset_ == pieces_[piece_].size) {
    ++piece_;
    offset_ = 0;
  }
}

ByteSpan WireCursor::Take(size_t most) {
  const ByteSpan& piece = pieces_[piece_];
  const ByteSpan taken = {piece.data + offset_, std::min(most, piece.size - offset_)};
  offset_ += taken.size;
  position_ += taken.size;
  remaining_ -= taken.size;
  SkipEmptyPieces();
  return taken;
}

bool WireCursor::ReadByte(uint8_t* byte) {
  if (remaining_ == 0) return false;
  *byte = *Take(1).data;
  return true;
}

bool WireCursor::ReadVarint(uint64_t* value) {
  uint64_t result = 0;
  for (int shift = 0; shift < 70; shift += 7) {
    uint8_t byte;
    if (!ReadByte(&byte)) return false;
    // The tenth byte holds one bit that counts; like protobuf, the others are dropped.
    if (shift < 64) result |= static_cast<uint64_t>(byte & 0x7f) << shift;
    if ((byte & 0x80) == 0) {
      *value = result;
      return true;
    }
  }
  return false;
}

bool WireCursor::ReadFixed32(uint32_t* value) {
  uint8_t bytes[4];
  if (!ReadBytes(bytes, sizeof(bytes))) return false;
  *value = static_cast<uint32_t>(bytes[0]) | static_cast<uint32_t>(bytes[1]) << 8 |
           static_cast<uint32_t>(bytes[2]) << 16 | static_cast<uint32_t>(bytes[3]) << 24;
  return true;
}

template <typename Copy>
bool WireCursor::CopyBytes(void* to, size_t count, Copy copy) {
  if (count > remaining_) return false;
  auto* out = static_cast<uint8_t*>(to);
  while (count > 0) {
    const ByteSpan bytes = Take(count);
    copy(out, bytes.data, bytes.size);
    out += bytes.size;
    count -= bytes.size;
  }
  return true;
}

bool WireCursor::ReadBytes(void* to, size_t count) { return CopyBytes(to, count, std::memcpy); }

bool WireCursor::StreamBytes(void* to, size_t count) { return CopyBytes(to, count, StreamCopy); }

bool WireCursor::Skip(size_t count) {
  if (count > remaining_) return false;
  while (count > 0) count -= Take(count).size;
  return true;
}

bool WireReader::ReadTag(WireTag* tag) {
  const size_t start = cursor_->position();
  uint64_t read;
  // At most five bytes, of which 32 bits count: what protobuf's own parser takes.
  if (!ReadVarint(&read) || cursor_->position() - start > kMaxTagBytes) return false;
  const auto key = static_cast<uint32_t>(read);
  tag->field = key >> 3;
  const auto type = static_cast<uint8_t>(key & 7);
  if (tag->field == 0 || type > static_cast<uint8_t>(WireType::kFixed32)) return false;
  tag->type = static_cast<WireType>(type);
  return true;
}

bool WireReader::ReadVarint(uint64_t* value) { return cursor_->ReadVarint(value) && WithinEnd(); }

bool WireReader::ReadFixed32(uint32_t* value) { return cursor_->ReadFixed32(value) && WithinEnd(); }

bool WireReader::ReadFloat(float* value) {
  uint32_t bits;
  if (!ReadFixed32(&bits)) return false;
  *value = std::bit_cast<float>(bits);
  return true;
}

bool WireReader::ReadLength(size_t* length) {
  uint64_t value;
  if (!ReadVarint(&value) || value > end_ - cursor_->position()) return false;
  *length = value;
  return true;
}

bool WireReader::Skip(size_t count) {
  return count <= end_ - cursor_->position() && cursor_->Skip(count);
}

bool WireReader::SkipValue(WireTag tag, int depth) {
  uint64_t ignored;
  size_t length;
  switch (tag.type) {
    case WireType::kVarint:
      return ReadVarint(&ignored);
    case WireType::kFixed64:
      return Skip(8);
    case WireType::kFixed32:
      return Skip(4);
    case WireType::kLengthDelimited:
      return ReadLength(&length) && Skip(length);
    case WireType::kEndGroup:
      return false;  // without a start
    case WireType::kStartGroup:
      break;
  }
  if (depth >= kMaxDepth) return false;
  while (!done()) {
    WireTag inner;
    if (!ReadTag(&inner)) return false;
    if (inner.type == WireType::kEndGroup) return inner.field == tag.field;
    if (!SkipValue(inner, depth + 1)) return false;
  }
  return false;  // the group never ended
}

}  // namespace tcgemm
