// UploadMatrixRequest and DownloadMatrixResponse on the wire: ranges are taken from where they lie.
#ifndef TCGEMM_SERVER_RPC_MATRIX_WIRE_H_
#define TCGEMM_SERVER_RPC_MATRIX_WIRE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "server/engine/resident_store.h"
#include "server/engine/resident_transfers.h"
#include "server/rpc/wire_reader.h"
#include "tcgemm/v1/matmul.pb.h"

namespace tcgemm {

// Of a range's data.
inline constexpr size_t kMaxRangeBytes = size_t{4} << 20;
// Of a page that a client asks for.
inline constexpr size_t kMaxPageMatrices = 1000;

struct UploadRange {
  int64_t offset = 0;
  uint32_t crc32c = 0;
  size_t position = 0;  // of the data in the message
  size_t bytes = 0;
};

// A tcgemm.v1.UploadMatrixRequest as it came: nothing checked yet.
struct UploadPart {
  std::optional<v1::UploadMatrixRequest::Header> header;
  std::optional<UploadRange> range;
};

// Accepts what protobuf accepts, as ParseMatmulRequest does. INVALID_ARGUMENT for bytes that are no
// such message.
absl::StatusOr<UploadPart> ParseUploadPart(absl::Span<const ByteSpan> pieces);

// The bytes of a range, where they lie in the message: INVALID_ARGUMENT when it is empty or its
// offset is negative, RESOURCE_EXHAUSTED above kMaxRangeBytes, DATA_LOSS when its CRC is another.
absl::StatusOr<std::vector<HostBytes>> CheckRange(absl::Span<const ByteSpan> pieces,
                                                  const UploadRange& range);

// The most matrices that a page may hold. INVALID_ARGUMENT, naming the field, for what is no page.
absl::StatusOr<size_t> PageLimitOf(const v1::ListMatricesRequest& request);

// What a header asks for as a new matrix. INVALID_ARGUMENT or UNIMPLEMENTED, naming the field.
absl::StatusOr<ResidentSpec> SpecOf(const v1::UploadMatrixRequest::Header& header);
// A header with a handle, against the matrix of that handle. INVALID_ARGUMENT, naming the field;
// NOT_FOUND for another generation.
absl::Status CheckJoin(const v1::UploadMatrixRequest::Header& header, const ResidentMatrix& matrix);

v1::UploadMatrixResponse DescribeUpload(const ResidentMatrix& matrix);
v1::MatrixInfo DescribeMatrix(const ResidentMatrix& matrix);

// Everything of a DownloadMatrixResponse up to its data's bytes, which follow it.
struct ChunkHeader {
  std::optional<v1::MatrixInfo> info;
  size_t offset = 0;
  uint32_t crc32c = 0;
  size_t bytes = 0;
};
std::string EncodeChunkHeader(const ChunkHeader& header);

// The bytes that a download asks for. INVALID_ARGUMENT when they do not lie within the matrix.
absl::StatusOr<ByteRange> RangeOf(const v1::DownloadMatrixRequest& request,
                                  const ResidentMatrix& matrix);

}  // namespace tcgemm

#endif  // TCGEMM_SERVER_RPC_MATRIX_WIRE_H_
