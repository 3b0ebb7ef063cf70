#include "server/rpc/matmul_wire.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/engine/resident_store.h"
#include "tcgemm/v1/matmul.pb.h"

namespace tcgemm {
namespace {

using v1::MatmulRequest;
using v1::Operand;

// From here on an operand goes past the caches: most of it would be evicted again before the device
// reads it (ADR 10).
constexpr size_t kStreamBytes = 1 << 20;
// Below this the ends of a row, which are ordinary stores, and the fences outweigh the gain.
constexpr size_t kStreamRowBytes = 2048;

absl::Status Malformed(const char* what, size_t position) {
  return absl::InvalidArgumentError(absl::StrCat(
      "the request is not a tcgemm.v1.MatmulRequest: malformed ", what, " at byte ", position));
}

// Each returns false when the bytes are malformed; a known field with another wire type is an
// unknown field, as in protobuf.
bool ReadInt64(WireReader& reader, int64_t* value) {
  uint64_t raw;
  if (!reader.ReadVarint(&raw)) return false;
  *value = static_cast<int64_t>(raw);
  return true;
}

bool ReadInt32(WireReader& reader, int32_t* value) {
  uint64_t raw;
  if (!reader.ReadVarint(&raw)) return false;
  *value = static_cast<int32_t>(raw);  // protobuf drops the upper bits too
  return true;
}

bool ReadInline(WireReader& reader, OperandFields& operand) {
  size_t length;
  if (!reader.ReadLength(&length)) return false;
  operand.source = OperandFields::Source::kInline;
  operand.inline_position = reader.cursor()->position();
  operand.inline_bytes = length;
  return reader.Skip(length);
}

// No handle is longer than a name may be; what is must not become a long string.
bool ReadHandle(WireReader& reader, std::string* handle) {
  size_t length;
  if (!reader.ReadLength(&length)) return false;
  handle->resize(std::min(length, ResidentStore::kMaxNameBytes + 1));
  return reader.cursor()->ReadBytes(handle->data(), handle->size()) &&
         reader.Skip(length - handle->size());
}

// As protobuf has it: a second RegionRef in a row is merged into the first; `again` says that the
// oneof held one already.
bool ReadRegion(WireReader& outer, bool again, RegionFields* region) {
  size_t length;
  if (!outer.ReadLength(&length)) return false;
  if (!again) *region = {};
  WireReader reader(outer.cursor(), length, /*depth=*/2);
  while (!reader.done()) {
    WireTag tag;
    if (!reader.ReadTag(&tag)) return false;
    const bool bytes = tag.type == WireType::kLengthDelimited;
    const bool varint = tag.type == WireType::kVarint;
    bool read;
    if (bytes && tag.field == v1::RegionRef::kRegionFieldNumber) {
      read = ReadHandle(reader, &region->name);
    } else if (varint && tag.field == v1::RegionRef::kOffsetFieldNumber) {
      read = ReadInt64(reader, &region->offset);
    } else {
      read = reader.SkipField(tag);
    }
    if (!read) return false;
  }
  return true;
}

bool ReadOperandRegion(WireReader& reader, OperandFields& operand) {
  const bool again = operand.source == OperandFields::Source::kRegion;
  operand.source = OperandFields::Source::kRegion;
  return ReadRegion(reader, again, &operand.region);
}

bool ReadOperandField(WireReader& reader, WireTag tag, OperandFields& operand) {
  const bool varint = tag.type == WireType::kVarint;
  const bool bytes = tag.type == WireType::kLengthDelimited;
  uint64_t flag;
  switch (tag.field) {
    case Operand::kRowsFieldNumber:
      return varint ? ReadInt64(reader, &operand.rows) : reader.SkipField(tag);
    case Operand::kColsFieldNumber:
      return varint ? ReadInt64(reader, &operand.cols) : reader.SkipField(tag);
    case Operand::kLdFieldNumber:
      return varint ? ReadInt64(reader, &operand.ld) : reader.SkipField(tag);
    case Operand::kDtypeFieldNumber:
      return varint ? ReadInt32(reader, &operand.dtype) : reader.SkipField(tag);
    case Operand::kTransposedFieldNumber:
      if (!varint) return reader.SkipField(tag);
      if (!reader.ReadVarint(&flag)) return false;
      operand.transposed = flag != 0;
      return true;
    case Operand::kInlineFieldNumber:
      return bytes ? ReadInline(reader, operand) : reader.SkipField(tag);
    case Operand::kHandleFieldNumber:
      if (!bytes) return reader.SkipField(tag);
      operand.source = OperandFields::Source::kHandle;
      return ReadHandle(reader, &operand.handle);
    case Operand::kRegionFieldNumber:
      return bytes ? ReadOperandRegion(reader, operand) : reader.SkipField(tag);
    default:
      return reader.SkipField(tag);
  }
}

bool ReadOperand(WireReader& outer, OperandFields& operand) {
  size_t length;
  if (!outer.ReadLength(&length)) return false;
  operand.present = true;
  WireReader reader(outer.cursor(), length, /*depth=*/1);
  while (!reader.done()) {
    WireTag tag;
    if (!reader.ReadTag(&tag) || !ReadOperandField(reader, tag, operand)) return false;
  }
  return true;
}

bool ReadOutput(WireReader& outer, OutputFields& output) {
  size_t length;
  if (!outer.ReadLength(&length)) return false;
  output.present = true;
  WireReader reader(outer.cursor(), length, /*depth=*/1);
  while (!reader.done()) {
    WireTag tag;
    if (!reader.ReadTag(&tag)) return false;
    const bool bytes = tag.type == WireType::kLengthDelimited;
    if (bytes && tag.field == v1::OutputTarget::kHandleFieldNumber) {
      output.target = OutputFields::Target::kHandle;
      if (!ReadHandle(reader, &output.handle)) return false;
    } else if (tag.type == WireType::kVarint &&
               tag.field == v1::OutputTarget::kTtlSecondsFieldNumber) {
      uint64_t raw;
      if (!reader.ReadVarint(&raw)) return false;
      output.ttl_seconds = static_cast<int64_t>(raw);
    } else if (bytes && tag.field == v1::OutputTarget::kRegionFieldNumber) {
      const bool again = output.target == OutputFields::Target::kRegion;
      output.target = OutputFields::Target::kRegion;
      if (!ReadRegion(reader, again, &output.region)) return false;
    } else if (!reader.SkipField(tag)) {
      return false;
    }
  }
  return true;
}

bool ReadOptionalFloat(WireReader& reader, std::optional<float>* value) {
  float read;
  if (!reader.ReadFloat(&read)) return false;
  *value = read;
  return true;
}

bool ReadSubmessageField(WireReader& reader, WireTag tag, RequestFields& fields) {
  switch (tag.field) {
    case MatmulRequest::kAFieldNumber:
      return ReadOperand(reader, fields.a);
    case MatmulRequest::kBFieldNumber:
      return ReadOperand(reader, fields.b);
    case MatmulRequest::kCFieldNumber:
      return ReadOperand(reader, fields.c);
    case MatmulRequest::kBiasFieldNumber:
      return ReadOperand(reader, fields.bias);
    case MatmulRequest::kOutputFieldNumber:
      return ReadOutput(reader, fields.output);
    default:
      return reader.SkipField(tag);
  }
}

bool ReadScalarField(WireReader& reader, WireTag tag, RequestFields& fields) {
  switch (tag.field) {
    case MatmulRequest::kOutputDtypeFieldNumber:
      return ReadInt32(reader, &fields.output_dtype);
    case MatmulRequest::kActivationFieldNumber:
      return ReadInt32(reader, &fields.epilogue.activation);
    case MatmulRequest::kVerifyFieldNumber:
      return ReadInt32(reader, &fields.verify);
    case MatmulRequest::kPriorityFieldNumber:
      return ReadInt32(reader, &fields.priority);
    case MatmulRequest::kReductionFieldNumber:
      return ReadInt32(reader, &fields.reduction);
    default:
      return reader.SkipField(tag);
  }
}

bool ReadRequestField(WireReader& reader, WireTag tag, RequestFields& fields) {
  if (tag.type == WireType::kLengthDelimited) return ReadSubmessageField(reader, tag, fields);
  if (tag.type == WireType::kVarint) return ReadScalarField(reader, tag, fields);
  if (tag.type == WireType::kFixed32 && tag.field == MatmulRequest::kAlphaFieldNumber) {
    return ReadOptionalFloat(reader, &fields.epilogue.alpha);
  }
  if (tag.type == WireType::kFixed32 && tag.field == MatmulRequest::kBetaFieldNumber) {
    return ReadOptionalFloat(reader, &fields.epilogue.beta);
  }
  return reader.SkipField(tag);
}

void PlanOperandCopies(const MatrixView& view, int64_t source_ld, size_t position, std::byte* to,
                       int parts, std::vector<OperandCopy>& copies) {
  const size_t size = DTypeSize(view.dtype);
  const int64_t rows_of_part = (view.rows + parts - 1) / parts;
  for (int64_t row = 0; row < view.rows; row += rows_of_part) {
    copies.push_back({.position = position,
                      .to = to,
                      .first_row = row,
                      .last_row = std::min(view.rows, row + rows_of_part),
                      .row_bytes = static_cast<size_t>(view.cols) * size,
                      .source_pitch = static_cast<size_t>(source_ld) * size,
                      .pitch = static_cast<size_t>(view.ld) * size});
  }
}

}  // namespace

absl::StatusOr<RequestFields> ParseMatmulRequest(absl::Span<const ByteSpan> pieces) {
  WireCursor cursor(pieces);
  WireReader reader(&cursor, cursor.remaining());
  RequestFields fields;
  while (!reader.done()) {
    WireTag tag;
    if (!reader.ReadTag(&tag)) return Malformed("tag", cursor.position());
    if (!ReadRequestField(reader, tag, fields)) return Malformed("field", cursor.position());
  }
  return fields;
}

GemmProblem RequestLayout::ProblemIn(std::byte* lease) const {
  GemmProblem problem;
  problem.a = a;
  problem.b = b;
  problem.d = d;
  if (a.data == nullptr) problem.a.data = lease + a_offset;
  if (b.data == nullptr) problem.b.data = lease + b_offset;
  if (d_in_lease()) problem.d.data = lease + d_offset;
  problem.epilogue = epilogue.steps;
  if (epilogue.c_in_lease()) problem.epilogue.c.data = lease + epilogue.c_offset;
  if (epilogue.bias_in_lease()) problem.epilogue.bias.data = lease + epilogue.bias_offset;
  return problem;
}

std::vector<OperandCopy> PlanCopies(const RequestLayout& layout, std::byte* lease, int parts) {
  std::vector<OperandCopy> copies;
  if (layout.a.data == nullptr) {
    PlanOperandCopies(layout.a, layout.a_source_ld, layout.a_position, lease + layout.a_offset,
                      parts, copies);
  }
  if (layout.b.data == nullptr) {
    PlanOperandCopies(layout.b, layout.b_source_ld, layout.b_position, lease + layout.b_offset,
                      parts, copies);
  }
  const EpilogueLayout& epilogue = layout.epilogue;
  if (epilogue.c_in_lease()) {
    PlanOperandCopies(epilogue.steps.c, epilogue.c_source_ld, epilogue.c_position,
                      lease + epilogue.c_offset, parts, copies);
  }
  if (epilogue.bias_in_lease()) {
    PlanOperandCopies(epilogue.steps.bias, epilogue.bias_source_ld, epilogue.bias_position,
                      lease + epilogue.bias_offset, parts, copies);
  }
  return copies;
}

void RunCopy(absl::Span<const ByteSpan> pieces, const OperandCopy& copy) {
  WireCursor cursor(pieces);
  const auto first = static_cast<size_t>(copy.first_row);
  cursor.Skip(copy.position + first * copy.source_pitch);
  std::byte* to = copy.to + first * copy.pitch;
  const auto rows = static_cast<size_t>(copy.last_row - copy.first_row);
  const bool dense = copy.pitch == copy.source_pitch && copy.pitch == copy.row_bytes;
  const size_t piece = dense ? rows * copy.row_bytes : copy.row_bytes;
  const size_t piece_count = dense ? 1 : rows;
  const bool stream = rows * copy.row_bytes >= kStreamBytes && piece >= kStreamRowBytes;
  for (size_t i = 0; i < piece_count; ++i) {
    if (stream) {
      cursor.StreamBytes(to, piece);
    } else {
      cursor.ReadBytes(to, piece);
    }
    // The last row has no gap after it, or one that nobody needs.
    if (i + 1 < piece_count) cursor.Skip(copy.source_pitch - copy.row_bytes);
    to += copy.pitch;
  }
}

std::string EncodeResponseHeader(const RequestLayout& layout, const JobOutcome& outcome,
                                 Nanos receive, Nanos decode, const std::string& handle) {
  v1::MatmulResponse response;
  response.set_rows(layout.d.rows);
  response.set_cols(layout.d.cols);
  response.set_dtype(layout.d.dtype == DType::kBf16 ? v1::BF16 : v1::FP32);
  v1::Timings& timings = *response.mutable_timings();
  timings.set_receive_ns(receive.count());
  timings.set_decode_ns(decode.count());
  timings.set_queue_ns(outcome.timings.queue.count());
  timings.set_copy_in_ns(outcome.timings.copy_in.count());
  timings.set_kernel_ns(outcome.timings.kernel.count());
  timings.set_copy_out_ns(outcome.timings.copy_out.count());
  response.set_kernel(outcome.kernel);
  response.set_tflops(outcome.tflops);
  response.set_batched_with(outcome.batched_with);
  response.set_handle(handle);
  std::string header = response.SerializeAsString();
  if (!layout.d_in_lease()) return header;
  header.push_back(static_cast<char>(v1::MatmulResponse::kDFieldNumber << 3 |
                                     static_cast<int>(WireType::kLengthDelimited)));
  size_t length = layout.d.span_bytes();
  while (length >= 0x80) {
    header.push_back(static_cast<char>((length & 0x7f) | 0x80));
    length >>= 7;
  }
  header.push_back(static_cast<char>(length));
  return header;
}

}  // namespace tcgemm
