#include "client/wire_reader.h"

#include <algorithm>
#include <cstring>

#include "base/crc32c.h"

namespace tcgemm::client {

WireReader::WireReader(absl::Span<const absl::string_view> pieces) : pieces_(pieces) {
  for (absl::string_view piece : pieces) remaining_ += piece.size();
}

void WireReader::Fail() {
  ok_ = false;
  remaining_ = 0;
}

template <typename Use>
void WireReader::Pass(size_t count, Use use) {
  remaining_ -= count;
  while (count > 0) {
    const absl::string_view piece = pieces_.front().substr(offset_);
    const size_t step = std::min(count, piece.size());
    if (step > 0) use(piece.data(), step);
    count -= step;
    offset_ += step;
    if (offset_ == pieces_.front().size()) {
      pieces_.remove_prefix(1);
      offset_ = 0;
    }
  }
}

void WireReader::Advance(size_t count, char* out) {
  Pass(count, [&out](const char* bytes, size_t size) {
    if (out == nullptr) return;
    std::memcpy(out, bytes, size);
    out += size;
  });
}

bool WireReader::ReadByte(uint8_t& byte) {
  if (remaining_ == 0) {
    Fail();
    return false;
  }
  char c = 0;
  Advance(1, &c);
  byte = static_cast<uint8_t>(c);
  return true;
}

uint64_t WireReader::ReadVarint() {
  constexpr int kMaxVarintBytes = 10;
  uint64_t value = 0;
  for (int i = 0; i < kMaxVarintBytes; ++i) {
    uint8_t byte = 0;
    if (!ReadByte(byte)) return 0;
    value |= static_cast<uint64_t>(byte & 0x7f) << (7 * i);
    if ((byte & 0x80) == 0) return value;
  }
  Fail();
  return 0;
}

uint32_t WireReader::ReadTag() {
  if (remaining_ == 0) return 0;
  const uint64_t tag = ReadVarint();
  if (tag > UINT32_MAX || tag >> 3 == 0) {
    Fail();
    return 0;
  }
  return static_cast<uint32_t>(tag);
}

uint64_t WireReader::ReadFixed(size_t count) {
  char bytes[8] = {};
  if (remaining_ < count) {
    Fail();
    return 0;
  }
  Advance(count, bytes);
  uint64_t value = 0;
  for (int i = 7; i >= 0; --i) value = value << 8 | static_cast<uint8_t>(bytes[i]);
  return value;
}

uint64_t WireReader::ReadFixed64() { return ReadFixed(8); }

uint32_t WireReader::ReadFixed32() { return static_cast<uint32_t>(ReadFixed(4)); }

WireReader WireReader::ReadMessage() {
  const uint64_t length = ReadVarint();
  if (!ok_ || length > remaining_) Fail();
  WireReader message = *this;
  if (!ok_) return message;
  message.remaining_ = length;
  Advance(length, nullptr);
  return message;
}

void WireReader::Skip(uint32_t tag) {
  switch (static_cast<WireType>(tag & 7)) {
    case WireType::kVarint:
      ReadVarint();
      return;
    case WireType::kFixed64:
      ReadFixed64();
      return;
    case WireType::kBytes:
      ReadMessage();
      return;
    case WireType::kFixed32:
      if (remaining_ < 4) return Fail();
      return Advance(4, nullptr);
  }
  Fail();
}

void WireReader::CopyTo(void* out) { Advance(remaining_, static_cast<char*>(out)); }

uint32_t WireReader::CopyToWithCrc32c(void* out) {
  auto* to = static_cast<char*>(out);
  uint32_t crc = 0;
  Pass(remaining_, [&](const char* bytes, size_t size) {
    crc = CopyWithCrc32c(crc, to, bytes, size);
    to += size;
  });
  return crc;
}

std::string WireReader::ReadRest() {
  std::string rest(remaining_, '\0');
  CopyTo(rest.data());
  return rest;
}

}  // namespace tcgemm::client
