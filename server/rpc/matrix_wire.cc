#include "server/rpc/matrix_wire.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "base/crc32c.h"
#include "base/status_macros.h"
#include "server/rpc/matmul_wire.h"

namespace tcgemm {
namespace {

using v1::UploadMatrixRequest;
using Header = UploadMatrixRequest::Header;
using Range = UploadMatrixRequest::Range;

constexpr size_t kMaxCreationKeyBytes = 64;
// An answer with all matrices, which clients that know no pages get, stays below what stock clients
// read, 4 MiB: each entry has at most two names and some numbers.
static_assert(ResidentStore::kMaxMatrices * (2 * ResidentStore::kMaxNameBytes + 80) < 4 << 20);
// A name, a handle and five numbers, with unknown fields of a later release.
constexpr size_t kMaxHeaderBytes = 4096;

bool ReadHeader(WireReader& reader, UploadPart& part) {
  size_t length;
  if (!reader.ReadLength(&length) || length > kMaxHeaderBytes) return false;
  std::string bytes(length, '\0');
  if (!reader.cursor()->ReadBytes(bytes.data(), length)) return false;
  // Headers merge, unless a range came between: protobuf's rule.
  if (!part.header.has_value()) part.header.emplace();
  part.range.reset();
  return part.header->MergeFromString(bytes);
}

bool ReadRangeField(WireReader& reader, WireTag tag, UploadRange& range) {
  if (tag.type == WireType::kVarint && tag.field == Range::kOffsetFieldNumber) {
    uint64_t raw;
    if (!reader.ReadVarint(&raw)) return false;
    range.offset = static_cast<int64_t>(raw);
    return true;
  }
  if (tag.type == WireType::kFixed32 && tag.field == Range::kCrc32CFieldNumber) {
    return reader.ReadFixed32(&range.crc32c);
  }
  if (tag.type == WireType::kLengthDelimited && tag.field == Range::kDataFieldNumber) {
    if (!reader.ReadLength(&range.bytes)) return false;
    range.position = reader.cursor()->position();
    return reader.Skip(range.bytes);
  }
  return reader.SkipField(tag);
}

bool ReadRange(WireReader& outer, UploadPart& part) {
  size_t length;
  if (!outer.ReadLength(&length)) return false;
  if (!part.range.has_value()) part.range.emplace();
  part.header.reset();
  WireReader reader(outer.cursor(), length, /*depth=*/1);
  while (!reader.done()) {
    WireTag tag;
    if (!reader.ReadTag(&tag) || !ReadRangeField(reader, tag, *part.range)) return false;
  }
  return true;
}

bool ReadPart(WireReader& reader, WireTag tag, UploadPart& part) {
  const bool bytes = tag.type == WireType::kLengthDelimited;
  if (bytes && tag.field == UploadMatrixRequest::kHeaderFieldNumber) {
    return ReadHeader(reader, part);
  }
  if (bytes && tag.field == UploadMatrixRequest::kRangeFieldNumber) return ReadRange(reader, part);
  return reader.SkipField(tag);
}

absl::Status CheckBetween(const std::string& field, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, " is ", value, ", must be from ", low, " to ", high));
}

absl::Status CheckType(int dtype) {
  if (!v1::DType_IsValid(dtype) || dtype == v1::DTYPE_UNSPECIFIED) {
    return absl::InvalidArgumentError(
        absl::StrCat("header.dtype is ", dtype, ", must be a declared type: BF16 (1)"));
  }
  if (dtype == v1::BF16) return absl::OkStatus();
  return absl::UnimplementedError(absl::StrCat("header.dtype ",
                                               v1::DType_Name(static_cast<v1::DType>(dtype)),
                                               " is declared, not built yet: upload BF16"));
}

v1::DType TypeOf(const ResidentMatrix& matrix) {
  return matrix.view().dtype == DType::kBf16 ? v1::BF16 : v1::FP32;
}

// Left out, or the matrix's own.
absl::Status CheckSame(const std::string& field, int64_t given, int64_t actual) {
  if (given == 0 || given == actual) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, " is ", given, ", but the matrix has ", actual, " (or leave it out)"));
}

}  // namespace

absl::StatusOr<UploadPart> ParseUploadPart(absl::Span<const ByteSpan> pieces) {
  WireCursor cursor(pieces);
  WireReader reader(&cursor, cursor.remaining());
  UploadPart part;
  while (!reader.done()) {
    WireTag tag;
    if (!reader.ReadTag(&tag) || !ReadPart(reader, tag, part)) {
      return absl::InvalidArgumentError(
          absl::StrCat("the message is not a tcgemm.v1.UploadMatrixRequest: malformed at byte ",
                       cursor.position()));
    }
  }
  return part;
}

absl::StatusOr<std::vector<HostBytes>> CheckRange(absl::Span<const ByteSpan> pieces,
                                                  const UploadRange& range) {
  if (range.bytes == 0) return absl::InvalidArgumentError("range.data is empty");
  if (range.offset < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("range.offset is ", range.offset, ", must not be negative"));
  }
  if (range.bytes > kMaxRangeBytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("range.data has ", range.bytes, " bytes, limit ", kMaxRangeBytes));
  }
  std::vector<HostBytes> found;
  size_t skip = range.position;
  size_t left = range.bytes;
  uint32_t crc = 0;
  for (const ByteSpan& piece : pieces) {
    const size_t begin = std::min(skip, piece.size);
    const size_t bytes = std::min(piece.size - begin, left);
    skip -= begin;
    left -= bytes;
    if (bytes == 0) continue;
    found.emplace_back(reinterpret_cast<const std::byte*>(piece.data) + begin, bytes);
    crc = ExtendCrc32c(crc, piece.data + begin, bytes);
  }
  if (crc == range.crc32c) return found;
  return absl::DataLossError(absl::StrCat("range.crc32c is ", range.crc32c, ", but the ",
                                          range.bytes, " bytes at offset ", range.offset, " have ",
                                          crc,
                                          ": they were damaged on their way, or "
                                          "their CRC is not a CRC32C"));
}

absl::StatusOr<ResidentSpec> SpecOf(const Header& header) {
  TCGEMM_RETURN_IF_ERROR(CheckBetween("header.rows", header.rows(), 1, kMaxDimension));
  TCGEMM_RETURN_IF_ERROR(CheckBetween("header.cols", header.cols(), 1, kMaxDimension));
  TCGEMM_RETURN_IF_ERROR(CheckType(header.dtype()));
  TCGEMM_RETURN_IF_ERROR(
      CheckBetween("header.ttl_seconds", header.ttl_seconds(), 0, kMaxTtlSeconds));
  if (header.generation() != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("header.generation is ", header.generation(),
                     ": it is for a matrix that is there, with header.handle"));
  }
  if (header.creation_key().size() > kMaxCreationKeyBytes) {
    return absl::InvalidArgumentError(absl::StrCat("header.creation_key has ",
                                                   header.creation_key().size(), " bytes, limit ",
                                                   kMaxCreationKeyBytes));
  }
  if (header.name().empty() && !header.creation_key().empty()) {
    return absl::InvalidArgumentError(
        "header.creation_key is for a matrix with a name, and header.name is empty");
  }
  return ResidentSpec{.name = header.name(),
                      .rows = header.rows(),
                      .cols = header.cols(),
                      .dtype = DType::kBf16,
                      .ttl = std::chrono::seconds(header.ttl_seconds()),
                      .creation_key = header.creation_key()};
}

absl::StatusOr<size_t> PageLimitOf(const v1::ListMatricesRequest& request) {
  if (request.page_size() < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("page_size is ", request.page_size(), ", must not be negative"));
  }
  if (request.page_token().size() > ResidentStore::kMaxNameBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("page_token has ", request.page_token().size(),
                     " bytes: it is not the next_page_token of a page"));
  }
  if (request.page_size() == 0) return static_cast<size_t>(ResidentStore::kMaxMatrices);
  return std::min(static_cast<size_t>(request.page_size()), kMaxPageMatrices);
}

absl::Status CheckJoin(const Header& header, const ResidentMatrix& matrix) {
  if (!header.name().empty()) {
    return absl::InvalidArgumentError(
        "header.name and header.handle are both set: a name is for a new matrix, a handle for one "
        "that is there");
  }
  if (header.ttl_seconds() != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("header.ttl_seconds is ", header.ttl_seconds(),
                     ": it is for a new matrix, not for one that is there"));
  }
  if (!header.creation_key().empty()) {
    return absl::InvalidArgumentError(
        "header.creation_key is for a new matrix, not for one that is there");
  }
  const uint64_t generation = matrix.identity().generation;
  if (header.generation() != 0 && header.generation() != generation) {
    return absl::NotFoundError(absl::StrCat(
        "header.generation is ", header.generation(), ", but '", header.handle(), "' is ",
        generation, " now: the matrix was deleted, and its name given to another one"));
  }
  TCGEMM_RETURN_IF_ERROR(CheckSame("header.rows", header.rows(), matrix.view().rows));
  TCGEMM_RETURN_IF_ERROR(CheckSame("header.cols", header.cols(), matrix.view().cols));
  return CheckSame("header.dtype", header.dtype(), TypeOf(matrix));
}

v1::UploadMatrixResponse DescribeUpload(const ResidentMatrix& matrix) {
  v1::UploadMatrixResponse response;
  response.set_handle(matrix.identity().handle);
  // Asked first: ranges that arrive between the two would make an answer that is complete and
  // has a hole.
  response.set_complete(matrix.complete());
  response.set_generation(matrix.identity().generation);
  for (const ByteRange& range : matrix.present()) {
    v1::ByteRange* const present = response.add_present();
    present->set_offset(static_cast<int64_t>(range.begin));
    present->set_length(static_cast<int64_t>(range.size()));
  }
  return response;
}

v1::MatrixInfo DescribeMatrix(const ResidentMatrix& matrix) {
  v1::MatrixInfo info;
  info.set_handle(matrix.identity().handle);
  info.set_name(matrix.identity().name);
  info.set_rows(matrix.view().rows);
  info.set_cols(matrix.view().cols);
  info.set_dtype(TypeOf(matrix));
  info.set_bytes(static_cast<int64_t>(matrix.dense_bytes()));
  info.set_preloaded(matrix.identity().preloaded);
  info.set_complete(matrix.complete());
  info.set_generation(matrix.identity().generation);
  return info;
}

std::string EncodeChunkHeader(const ChunkHeader& header) {
  v1::DownloadMatrixResponse response;
  if (header.info.has_value()) *response.mutable_info() = *header.info;
  response.set_offset(static_cast<int64_t>(header.offset));
  response.set_crc32c(header.crc32c);
  std::string bytes = response.SerializeAsString();
  bytes.push_back(static_cast<char>(v1::DownloadMatrixResponse::kDataFieldNumber << 3 |
                                    static_cast<int>(WireType::kLengthDelimited)));
  size_t length = header.bytes;
  for (; length >= 0x80; length >>= 7) bytes.push_back(static_cast<char>((length & 0x7f) | 0x80));
  bytes.push_back(static_cast<char>(length));
  return bytes;
}

absl::StatusOr<ByteRange> RangeOf(const v1::DownloadMatrixRequest& request,
                                  const ResidentMatrix& matrix) {
  const auto bytes = static_cast<int64_t>(matrix.dense_bytes());
  const int64_t offset = request.range().offset();
  const int64_t length = request.range().length();
  if (offset < 0 || offset >= bytes || length < 0 || length > bytes - offset) {
    return absl::InvalidArgumentError(absl::StrCat("range of ", length, " bytes at offset ", offset,
                                                   " must lie within the matrix's ", bytes,
                                                   " bytes"));
  }
  const int64_t end = length == 0 ? bytes : offset + length;
  return ByteRange{static_cast<size_t>(offset), static_cast<size_t>(end)};
}

}  // namespace tcgemm
