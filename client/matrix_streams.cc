#include "client/matrix_streams.h"

#include <grpc/slice.h>
#include <grpcpp/impl/rpc_method.h>
#include <grpcpp/support/sync_stream.h>

#include <algorithm>
#include <limits>
#include <optional>

#include "absl/strings/str_cat.h"
#include "base/crc32c.h"
#include "base/status_macros.h"
#include "client/wire_reader.h"

namespace tcgemm::client {
namespace {

using grpc::internal::RpcMethod;

constexpr char kUpload[] = "/tcgemm.v1.MatmulService/UploadMatrix";
constexpr char kDownload[] = "/tcgemm.v1.MatmulService/DownloadMatrix";

template <typename Message>
grpc::ByteBuffer Serialize(const Message& message) {
  const grpc::Slice slice(message.SerializeAsString());
  return grpc::ByteBuffer(&slice, 1);
}

// ---- Up ----

void AppendVarint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<char>(value | 0x80));
  out.push_back(static_cast<char>(value));
}

// An UploadMatrixRequest with a range, up to the data's bytes, which follow it.
std::string EncodeRangeHead(const Range& range, uint32_t crc) {
  using Fields = v1::UploadMatrixRequest::Range;
  std::string fields;
  AppendVarint(fields, WireTag(Fields::kOffsetFieldNumber, WireType::kVarint));
  AppendVarint(fields, range.begin);
  AppendVarint(fields, WireTag(Fields::kCrc32CFieldNumber, WireType::kFixed32));
  for (int shift = 0; shift < 32; shift += 8) fields.push_back(static_cast<char>(crc >> shift));
  AppendVarint(fields, WireTag(Fields::kDataFieldNumber, WireType::kBytes));
  AppendVarint(fields, range.size());
  std::string head;
  AppendVarint(head, WireTag(v1::UploadMatrixRequest::kRangeFieldNumber, WireType::kBytes));
  AppendVarint(head, fields.size() + range.size());
  return head + fields;
}

grpc::ByteBuffer RangeMessage(const MatrixView& matrix, const Range& range) {
  grpc_slice data = grpc_slice_malloc(range.size());
  const uint32_t crc = Gather(matrix, range, reinterpret_cast<char*>(GRPC_SLICE_START_PTR(data)));
  const grpc::Slice slices[] = {grpc::Slice(EncodeRangeHead(range, crc)),
                                grpc::Slice(data, grpc::Slice::STEAL_REF)};
  return grpc::ByteBuffer(slices, 2);
}

// A range as a server told it, which may be anything.
std::optional<Range> RangeOf(const v1::ByteRange& range) {
  if (range.offset() < 0 || range.length() <= 0) return std::nullopt;
  const auto begin = static_cast<size_t>(range.offset());
  return Range{begin, begin + static_cast<size_t>(range.length())};
}

absl::StatusOr<UploadAnswer> ReadAnswer(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  std::vector<absl::string_view> pieces;
  TCGEMM_RETURN_IF_ERROR(Dump(buffer, slices, pieces));
  v1::UploadMatrixResponse response;
  if (!response.ParseFromString(WireReader(pieces).ReadRest())) {
    return absl::DataLossError("the response is not an UploadMatrixResponse");
  }
  UploadAnswer answer{.handle = response.handle(),
                      .generation = response.generation(),
                      .complete = response.complete()};
  for (const v1::ByteRange& range : response.present()) {
    if (const std::optional<Range> present = RangeOf(range)) answer.present.push_back(*present);
  }
  return answer;
}

// ---- Down ----

struct Chunk {
  std::optional<v1::MatrixInfo> info;
  int64_t offset = 0;
  uint32_t crc = 0;
  WireReader data;
};

absl::StatusOr<Chunk> ReadChunk(WireReader reader) {
  using Fields = v1::DownloadMatrixResponse;
  Chunk chunk;
  bool ok = true;
  while (const uint32_t tag = reader.ReadTag()) {
    switch (tag) {
      case WireTag(Fields::kInfoFieldNumber, WireType::kBytes):
        chunk.info.emplace();
        ok = chunk.info->ParseFromString(reader.ReadMessage().ReadRest()) && ok;
        break;
      case WireTag(Fields::kOffsetFieldNumber, WireType::kVarint):
        chunk.offset = static_cast<int64_t>(reader.ReadVarint());
        break;
      case WireTag(Fields::kCrc32CFieldNumber, WireType::kFixed32):
        chunk.crc = reader.ReadFixed32();
        break;
      case WireTag(Fields::kDataFieldNumber, WireType::kBytes):
        chunk.data = reader.ReadMessage();
        break;
      default:
        reader.Skip(tag);
    }
  }
  if (ok && reader.ok()) return chunk;
  return absl::DataLossError("the response is not a DownloadMatrixResponse");
}

// Puts the chunks of one stream in place.
class Receiver {
 public:
  explicit Receiver(const DownloadRequest& request)
      : request_(request), at_(request.range.begin), end_(request.range.end) {}

  absl::Status Take(const grpc::ByteBuffer& buffer) {
    std::vector<grpc::Slice> slices;
    std::vector<absl::string_view> pieces;
    TCGEMM_RETURN_IF_ERROR(Dump(buffer, slices, pieces));
    TCGEMM_ASSIGN_OR_RETURN(Chunk chunk, ReadChunk(WireReader(pieces)));
    if (to_ == nullptr) TCGEMM_RETURN_IF_ERROR(Begin(chunk));
    const size_t bytes = chunk.data.remaining();
    if (bytes == 0 || chunk.offset != static_cast<int64_t>(at_) || bytes > end_ - at_) {
      return absl::DataLossError(absl::StrCat("a chunk of ", bytes, " bytes came for offset ",
                                              chunk.offset, "; bytes from ", at_, " to ", end_,
                                              " were to come"));
    }
    if (chunk.data.CopyToWithCrc32c(to_ + at_) != chunk.crc) {
      return absl::DataLossError(absl::StrCat("the chunk at offset ", at_, " is damaged"));
    }
    at_ += bytes;
    return absl::OkStatus();
  }

  bool complete() const { return to_ != nullptr && at_ == end_; }
  Range left() const { return {at_, end_}; }
  uint64_t generation() const { return generation_; }

 private:
  absl::Status Begin(const Chunk& chunk) {
    if (!chunk.info.has_value()) {
      return absl::DataLossError("the download does not say what matrix it is");
    }
    const v1::MatrixInfo& info = *chunk.info;
    if (request_.generation != 0 && info.generation() != request_.generation) {
      return absl::AbortedError(absl::StrCat("matrix '", request_.handle,
                                             "' was replaced by another one while it was read"));
    }
    TCGEMM_ASSIGN_OR_RETURN(to_, request_.place(info));
    generation_ = info.generation();
    if (end_ == 0) end_ = static_cast<size_t>(info.bytes());
    if (end_ < at_) return absl::DataLossError("the matrix is smaller than it was");
    return absl::OkStatus();
  }

  const DownloadRequest& request_;
  char* to_ = nullptr;
  size_t at_;
  size_t end_;
  uint64_t generation_ = 0;
};

}  // namespace

uint32_t Gather(const MatrixView& matrix, const Range& range, char* to) {
  const size_t size = DTypeSize(matrix.dtype);
  const size_t row_bytes = static_cast<size_t>(matrix.cols) * size;
  const size_t pitch = static_cast<size_t>(matrix.ld) * size;
  const auto* const data = static_cast<const char*>(matrix.data);
  const bool dense = row_bytes == pitch;
  uint32_t crc = 0;
  for (size_t at = range.begin; at < range.end;) {
    const size_t column = at % row_bytes;
    const size_t left = range.end - at;
    const size_t bytes = dense ? left : std::min(left, row_bytes - column);
    crc = CopyWithCrc32c(crc, to, data + at / row_bytes * pitch + column, bytes);
    at += bytes;
    to += bytes;
  }
  return crc;
}

UploadOutcome SendRanges(const StreamPath& path, const v1::UploadMatrixRequest::Header& header,
                         const MatrixView& matrix, RangeQueue* queue) {
  CallGroup::Context context(path.group, path.deadline);
  grpc::ByteBuffer response;
  const std::unique_ptr<grpc::ClientWriter<grpc::ByteBuffer>> writer(
      grpc::internal::ClientWriterFactory<grpc::ByteBuffer>::Create(
          path.channel.get(), RpcMethod(kUpload, RpcMethod::CLIENT_STREAMING), &*context,
          &response));
  v1::UploadMatrixRequest first;
  *first.mutable_header() = header;
  bool going = writer->Write(Serialize(first));
  while (going && queue != nullptr) {
    const std::optional<Range> range = queue->Next();
    if (!range.has_value()) break;
    going = writer->Write(RangeMessage(matrix, *range));
  }
  if (going) writer->WritesDone();
  UploadOutcome outcome{.attempt = AttemptOf(writer->Finish(), *context, *path.channel)};
  if (!outcome.attempt.status.ok()) return outcome;
  absl::StatusOr<UploadAnswer> answer = ReadAnswer(response);
  outcome.attempt.status = answer.status();
  if (answer.ok()) outcome.answer = *std::move(answer);
  return outcome;
}

DownloadOutcome ReceiveRange(const StreamPath& path, const DownloadRequest& request) {
  CallGroup::Context context(path.group, path.deadline);
  v1::DownloadMatrixRequest message;
  message.set_handle(request.handle);
  message.mutable_range()->set_offset(static_cast<int64_t>(request.range.begin));
  if (request.range.end != 0) {
    message.mutable_range()->set_length(static_cast<int64_t>(request.range.size()));
  }
  const std::unique_ptr<grpc::ClientReader<grpc::ByteBuffer>> reader(
      grpc::internal::ClientReaderFactory<grpc::ByteBuffer>::Create(
          path.channel.get(), RpcMethod(kDownload, RpcMethod::SERVER_STREAMING), &*context,
          Serialize(message)));
  Receiver receiver(request);
  absl::Status wrong;
  for (grpc::ByteBuffer chunk; wrong.ok() && reader->Read(&chunk);) wrong = receiver.Take(chunk);
  if (!wrong.ok()) context->TryCancel();
  DownloadOutcome outcome{.attempt = AttemptOf(reader->Finish(), *context, *path.channel),
                          .left = receiver.left(),
                          .generation = receiver.generation()};
  if (!wrong.ok()) outcome.attempt = {.status = wrong};
  if (outcome.attempt.status.ok() && !receiver.complete()) {
    outcome.attempt.status = absl::DataLossError("the download ended early");
  }
  // Only the last word was lost.
  if (MayRetry(outcome.attempt) && receiver.complete()) outcome.attempt = {};
  return outcome;
}

}  // namespace tcgemm::client
