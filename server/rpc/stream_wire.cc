#include "server/rpc/stream_wire.h"

#include <algorithm>
#include <chrono>

#include "absl/strings/str_cat.h"
#include "base/crc32c.h"
#include "base/status_macros.h"
#include "tcgemm/v1/matmul.pb.h"

namespace tcgemm {
namespace {

using v1::MatmulStreamRequest;
using v1::MatmulStreamResponse;
using v1::Panel;

// A message of the oneof, as pieces of the whole: it may come in several parts, which merge.
using Parts = std::vector<ByteSpan>;

// The `bytes` from `position` on, appended to `found`.
void AddBytes(absl::Span<const ByteSpan> pieces, size_t position, size_t bytes, Parts& found) {
  for (const ByteSpan& piece : pieces) {
    const size_t begin = std::min(position, piece.size);
    const size_t count = std::min(piece.size - begin, bytes);
    position -= begin;
    bytes -= count;
    if (count > 0) found.push_back({piece.data + begin, count});
  }
}

bool ReadPanelField(WireReader& reader, WireTag tag, StreamPanel& panel) {
  if (tag.type == WireType::kVarint && tag.field == Panel::kOffsetFieldNumber) {
    uint64_t raw;
    if (!reader.ReadVarint(&raw)) return false;
    panel.offset = static_cast<int64_t>(raw);
    return true;
  }
  if (tag.type == WireType::kFixed32 && tag.field == Panel::kCrc32CFieldNumber) {
    panel.crc32c.emplace();
    return reader.ReadFixed32(&*panel.crc32c);
  }
  if (tag.type == WireType::kLengthDelimited && tag.field == Panel::kDataFieldNumber) {
    if (!reader.ReadLength(&panel.bytes)) return false;
    panel.position = reader.cursor()->position();
    return reader.Skip(panel.bytes);
  }
  return reader.SkipField(tag);
}

bool ReadPanel(WireReader& outer, std::optional<StreamPanel>& panel) {
  size_t length;
  if (!outer.ReadLength(&length)) return false;
  if (!panel.has_value()) panel.emplace();
  WireReader reader(outer.cursor(), length, /*depth=*/1);
  while (!reader.done()) {
    WireTag tag;
    if (!reader.ReadTag(&tag) || !ReadPanelField(reader, tag, *panel)) return false;
  }
  return true;
}

struct HeaderParts {
  bool present = false;
  Parts parts;
};

bool ReadPart(WireReader& reader, WireTag tag, absl::Span<const ByteSpan> pieces, StreamPart& part,
              HeaderParts& header) {
  const bool bytes = tag.type == WireType::kLengthDelimited;
  // The last member wins; the same one again merges: protobuf's rule for oneof.
  if (bytes && tag.field == MatmulStreamRequest::kHeaderFieldNumber) {
    size_t length;
    if (!reader.ReadLength(&length)) return false;
    part = {};
    header.present = true;
    AddBytes(pieces, reader.cursor()->position(), length, header.parts);
    return reader.Skip(length);
  }
  if (bytes && tag.field == MatmulStreamRequest::kAFieldNumber) {
    header = {};
    part.b.reset();
    return ReadPanel(reader, part.a);
  }
  if (bytes && tag.field == MatmulStreamRequest::kBFieldNumber) {
    header = {};
    part.a.reset();
    return ReadPanel(reader, part.b);
  }
  return reader.SkipField(tag);
}

void AppendVarint(std::string& bytes, uint64_t value) {
  for (; value >= 0x80; value >>= 7) bytes.push_back(static_cast<char>((value & 0x7f) | 0x80));
  bytes.push_back(static_cast<char>(value));
}

void AppendBytesTag(std::string& bytes, int field) {
  AppendVarint(
      bytes, static_cast<uint64_t>(field) << 3 | static_cast<uint64_t>(WireType::kLengthDelimited));
}

size_t VarintBytes(uint64_t value) {
  size_t count = 1;
  for (; value >= 0x80; value >>= 7) ++count;
  return count;
}

v1::DType TypeOf(DType dtype) { return dtype == DType::kBf16 ? v1::BF16 : v1::FP32; }

}  // namespace

absl::StatusOr<StreamPart> ParseStreamPart(absl::Span<const ByteSpan> pieces) {
  WireCursor cursor(pieces);
  WireReader reader(&cursor, cursor.remaining());
  StreamPart part;
  HeaderParts header;
  while (!reader.done()) {
    WireTag tag;
    if (!reader.ReadTag(&tag) || !ReadPart(reader, tag, pieces, part, header)) {
      return absl::InvalidArgumentError(
          absl::StrCat("the message is not a tcgemm.v1.MatmulStreamRequest: malformed at byte ",
                       cursor.position()));
    }
  }
  if (header.present) {
    TCGEMM_ASSIGN_OR_RETURN(part.header, ParseMatmulRequest(header.parts));
  }
  return part;
}

absl::Status PanelOrder::Take(const StreamPanel& panel) {
  if (panel.bytes == 0) return absl::InvalidArgumentError(name_ + ".data is empty");
  if (panel.bytes > kMaxPanelBytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat(name_, ".data has ", panel.bytes, " bytes, limit ", kMaxPanelBytes));
  }
  if (panel.offset < 0 || static_cast<size_t>(panel.offset) != taken_) {
    return absl::InvalidArgumentError(
        absl::StrCat(name_, ".offset is ", panel.offset, ", must be the next byte's: ", taken_));
  }
  if (panel.bytes > operand_bytes_ - taken_) {
    return absl::InvalidArgumentError(absl::StrCat(name_, ".data has ", panel.bytes,
                                                   " bytes at offset ", panel.offset, ", but ",
                                                   name_, " has ", operand_bytes_, " in all"));
  }
  taken_ += panel.bytes;
  return absl::OkStatus();
}

std::string PanelOrder::Describe() const {
  return absl::StrCat(taken_, " of ", operand_bytes_, " bytes of ", name_);
}

std::vector<HostBytes> BytesOf(absl::Span<const ByteSpan> pieces, const StreamPanel& panel) {
  Parts parts;
  AddBytes(pieces, panel.position, panel.bytes, parts);
  std::vector<HostBytes> found;
  found.reserve(parts.size());
  for (const ByteSpan& part : parts) {
    found.emplace_back(reinterpret_cast<const std::byte*>(part.data), part.size);
  }
  return found;
}

absl::Status CheckCrc(const std::string& name, const StreamPanel& panel,
                      absl::Span<const HostBytes> data) {
  if (!panel.crc32c.has_value()) return absl::OkStatus();
  uint32_t crc = 0;
  for (const HostBytes& piece : data) crc = ExtendCrc32c(crc, piece.data(), piece.size());
  if (crc == *panel.crc32c) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat(name, ".crc32c is ", *panel.crc32c, ", but the ", panel.bytes,
                   " bytes at offset ", panel.offset, " have ", crc,
                   ": they were damaged on their way, or their CRC is not a CRC32C"));
}

std::string EncodeResultPanel(const ResultPanel& panel) {
  Panel start;
  start.set_offset(static_cast<int64_t>(panel.offset));
  start.set_crc32c(panel.crc32c);
  const std::string fields = start.SerializeAsString();
  const size_t data = 1 + VarintBytes(panel.bytes) + panel.bytes;  // its tag is below 16: one byte
  std::string bytes;
  AppendBytesTag(bytes, MatmulStreamResponse::kDFieldNumber);
  AppendVarint(bytes, fields.size() + data);
  bytes += fields;
  AppendBytesTag(bytes, Panel::kDataFieldNumber);
  AppendVarint(bytes, panel.bytes);
  return bytes;
}

std::string EncodeFirstHeader(const MutableMatrixView& d) {
  MatmulStreamResponse response;
  v1::MatmulResponse& header = *response.mutable_header();
  header.set_rows(d.rows);
  header.set_cols(d.cols);
  header.set_dtype(TypeOf(d.dtype));
  return response.SerializeAsString();
}

std::string EncodeLastHeader(const GemmShape& shape, DType output, const StreamTimings& timings,
                             const std::string& handle) {
  MatmulStreamResponse response;
  v1::MatmulResponse& header = *response.mutable_header();
  header.set_rows(shape.m);
  header.set_cols(shape.n);
  header.set_dtype(TypeOf(output));
  v1::Timings& times = *header.mutable_timings();
  times.set_receive_ns(timings.receive.count());
  times.set_decode_ns(timings.decode.count());
  times.set_queue_ns(timings.job.queue.count());
  times.set_copy_in_ns(timings.job.copy_in.count());
  times.set_kernel_ns(timings.job.kernel.count());
  times.set_copy_out_ns(timings.job.copy_out.count());
  header.set_kernel(timings.kernel);
  const double seconds = std::chrono::duration<double>(timings.job.kernel).count();
  if (seconds > 0) header.set_tflops(shape.flops() / seconds * 1e-12);
  header.set_batched_with(timings.batched_with);
  header.set_handle(handle);
  return response.SerializeAsString();
}

}  // namespace tcgemm
