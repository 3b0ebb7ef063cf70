#include "server/rpc/matrix_service.h"

#include <grpcpp/grpcpp.h>

#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/crc32c.h"
#include "base/status_macros.h"
#include "server/rpc/matrix_call.h"
#include "server/rpc/matrix_wire.h"
#include "server/rpc/stream_call.h"

namespace tcgemm {
namespace {

constexpr char kUpload[] = "UploadMatrix";
constexpr char kDownload[] = "DownloadMatrix";
constexpr char kList[] = "ListMatrices";
constexpr char kDelete[] = "DeleteMatrix";

constexpr size_t kChunkBytes = size_t{1} << 20;
// A handle and two numbers.
constexpr size_t kMaxSmallRequestBytes = size_t{64} << 10;

template <typename Message>
grpc::ByteBuffer Serialize(const Message& message) {
  const grpc::Slice slice(message.SerializeAsString());
  return grpc::ByteBuffer(&slice, 1);
}

template <typename Message>
absl::StatusOr<Message> Parse(const grpc::ByteBuffer& buffer) {
  if (buffer.Length() > kMaxSmallRequestBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the request has ", buffer.Length(), " bytes, limit ", kMaxSmallRequestBytes));
  }
  std::vector<grpc::Slice> slices;
  if (!buffer.Dump(&slices).ok()) return absl::InternalError("unreadable message");
  std::string bytes;
  for (const grpc::Slice& slice : slices) {
    bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  Message message;
  if (message.ParseFromString(bytes)) return message;
  return absl::InvalidArgumentError(
      absl::StrCat("the request is not a ", Message::descriptor()->full_name()));
}

class ListCall final : public MatrixCall {
 public:
  ListCall(CallContext* context, grpc::CallbackServerContext* grpc_context)
      : MatrixCall(context, grpc_context, kList, Kind::kQuick) {}

 private:
  void OnMessage(const grpc::ByteBuffer& message) override {
    const absl::StatusOr<v1::ListMatricesResponse> page = List(message);
    if (!page.ok()) {
      End(page.status());
      return;
    }
    grpc::ByteBuffer response = Serialize(*page);
    Respond(response);
  }
  absl::StatusOr<v1::ListMatricesResponse> List(const grpc::ByteBuffer& message) {
    TCGEMM_ASSIGN_OR_RETURN(const auto request, Parse<v1::ListMatricesRequest>(message));
    TCGEMM_ASSIGN_OR_RETURN(const size_t limit, PageLimitOf(request));
    const ResidentPage page = engine()->residents().ListPage(caller(), request.page_token(), limit);
    v1::ListMatricesResponse response;
    for (const ResidentRef& matrix : page.matrices) {
      *response.add_matrices() = DescribeMatrix(*matrix);
    }
    if (page.more) response.set_next_page_token(page.matrices.back()->identity().handle);
    return response;
  }
};

class DeleteCall final : public MatrixCall {
 public:
  DeleteCall(CallContext* context, grpc::CallbackServerContext* grpc_context)
      : MatrixCall(context, grpc_context, kDelete, Kind::kQuick) {}

 private:
  void OnMessage(const grpc::ByteBuffer& message) override {
    if (const absl::Status status = Delete(message); !status.ok()) {
      End(status);
      return;
    }
    grpc::ByteBuffer response = Serialize(v1::DeleteMatrixResponse());
    Respond(response);
  }
  absl::Status Delete(const grpc::ByteBuffer& message) {
    TCGEMM_ASSIGN_OR_RETURN(const auto request, Parse<v1::DeleteMatrixRequest>(message));
    return engine()->residents().Delete(caller(), request.handle());
  }
};

class DownloadCall final : public MatrixCall {
 public:
  DownloadCall(CallContext* context, grpc::CallbackServerContext* grpc_context)
      : MatrixCall(context, grpc_context, kDownload, Kind::kTransfer) {}

 private:
  void OnMessage(const grpc::ByteBuffer& message) override {
    const absl::Status status = Open(message);
    status.ok() ? SendChunk() : End(status);
  }
  void OnWritten() override {
    Post([this] { SendChunk(); });
  }

  absl::Status Open(const grpc::ByteBuffer& message) {
    TCGEMM_ASSIGN_OR_RETURN(const auto request, Parse<v1::DownloadMatrixRequest>(message));
    TCGEMM_ASSIGN_OR_RETURN(matrix_, engine()->residents().Find(caller(), request.handle()));
    if (!matrix_->complete()) {
      return absl::FailedPreconditionError(
          absl::StrCat("matrix '", request.handle(), "' is not there in full yet"));
    }
    TCGEMM_ASSIGN_OR_RETURN(left_, RangeOf(request, *matrix_));
    info_ = DescribeMatrix(*matrix_);
    return absl::OkStatus();
  }

  void SendChunk() {
    const ByteRange range{left_.begin, std::min(left_.end, left_.begin + kChunkBytes)};
    grpc_slice data = grpc_slice_malloc(range.size());
    auto* const bytes = reinterpret_cast<std::byte*>(GRPC_SLICE_START_PTR(data));
    const absl::Status status = engine()->transfers().Read(matrix_, range, bytes);
    const std::string header = EncodeChunkHeader({.info = std::exchange(info_, std::nullopt),
                                                  .offset = range.begin,
                                                  .crc32c = Crc32c(bytes, range.size()),
                                                  .bytes = range.size()});
    const grpc::Slice slices[] = {grpc::Slice(header), grpc::Slice(data, grpc::Slice::STEAL_REF)};
    if (!status.ok()) {
      End(status);
      return;
    }
    left_.begin = range.end;
    grpc::ByteBuffer response(slices, 2);
    if (left_.begin < left_.end) {
      Write(response);
      return;
    }
    matrix_.reset();  // before the client can know that it has all
    Respond(response);
  }

  ResidentRef matrix_;
  ByteRange left_;
  std::optional<v1::MatrixInfo> info_;
};

class UploadCall final : public MatrixCall {
 public:
  UploadCall(CallContext* context, grpc::CallbackServerContext* grpc_context)
      : MatrixCall(context, grpc_context, kUpload, Kind::kTransfer) {}
  ~UploadCall() override { DropUnheard(); }  // once no handler runs any more

 private:
  void OnMessage(const grpc::ByteBuffer& message) override {
    if (const absl::Status held = HoldMatrix(); !held.ok()) {
      End(held);
      return;
    }
    const absl::Status status = Take(message);
    if (status.ok()) {
      LetGoUntilNextMessage();
      Read();
      return;
    }
    // Room for a new matrix may come back; a range that is too large, or one piece too many, stays.
    const Retry retry = matrix_ == nullptr && may_fit_later_ ? Retry::kYes : Retry::kNo;
    DropUnheard();
    matrix_.reset();
    if (absl::IsResourceExhausted(status)) {
      End(status, retry, RejectReason::kMemory);
    } else {
      End(status);
    }
  }

  void OnRequestsEnd() override {
    if (const absl::Status held = HoldMatrix(); !held.ok()) {
      End(held);
      return;
    }
    if (!engine()->residents().Holds(matrix_)) {
      End(Left());
      return;
    }
    grpc::ByteBuffer response = Serialize(DescribeUpload(*matrix_));
    matrix_.reset();  // before the client can want its room
    Respond(response);
  }

  void OnAnswered() override { unheard_.reset(); }

  // An upload keeps no room between two messages, however long the next one takes: who needs it may
  // have it once the upload is too slow (ResidentStore::kSlowestUpload).
  void LetGoUntilNextMessage() {
    if (matrix_ == nullptr || matrix_->complete()) return;
    handle_ = matrix_->identity().handle;
    unfinished_ = matrix_;
    matrix_.reset();
  }
  absl::Status HoldMatrix() {
    if (matrix_ != nullptr || handle_.empty()) return absl::OkStatus();
    matrix_ = unfinished_.lock();
    return matrix_ != nullptr ? absl::OkStatus() : Left();
  }

  absl::Status Take(const grpc::ByteBuffer& message) {
    std::vector<grpc::Slice> slices;
    if (!message.Dump(&slices).ok()) return absl::InternalError("unreadable message");
    std::vector<ByteSpan> pieces;
    pieces.reserve(slices.size());
    for (const grpc::Slice& slice : slices) pieces.push_back({slice.begin(), slice.size()});
    TCGEMM_ASSIGN_OR_RETURN(const UploadPart part, ParseUploadPart(pieces));
    if (part.header.has_value()) return Open(*part.header);
    if (!part.range.has_value()) {
      return absl::InvalidArgumentError("a message has neither header nor range");
    }
    if (matrix_ == nullptr) {
      return absl::InvalidArgumentError("a range came before the header");
    }
    TCGEMM_ASSIGN_OR_RETURN(const std::vector<HostBytes> data, CheckRange(pieces, *part.range));
    if (!engine()->residents().Touch(matrix_)) return Left();
    return engine()->transfers().Write(matrix_, static_cast<size_t>(part.range->offset), data);
  }

  absl::Status Open(const v1::UploadMatrixRequest::Header& header) {
    if (matrix_ != nullptr) return absl::InvalidArgumentError("a second header");
    ResidentStore& store = engine()->residents();
    if (header.handle().empty()) {
      TCGEMM_ASSIGN_OR_RETURN(const ResidentSpec spec, SpecOf(header));
      const double bytes = static_cast<double>(spec.rows) * static_cast<double>(spec.cols) *
                           static_cast<double>(DTypeSize(spec.dtype));
      may_fit_later_ = bytes <= static_cast<double>(store.pool().total_bytes());
      TCGEMM_ASSIGN_OR_RETURN(matrix_, store.Create(caller(), spec));
      if (header.name().empty()) unheard_ = matrix_;
      return absl::OkStatus();
    }
    TCGEMM_ASSIGN_OR_RETURN(const ResidentRef found, store.Find(caller(), header.handle()));
    if (found->identity().preloaded) {
      return absl::PermissionDeniedError(
          absl::StrCat("matrix '", header.handle(),
                       "' was preloaded by the operator: it cannot be uploaded to"));
    }
    TCGEMM_RETURN_IF_ERROR(CheckJoin(header, *found));
    matrix_ = found;
    return absl::OkStatus();
  }

  absl::Status Left() const {
    return absl::NotFoundError(
        absl::StrCat("matrix '", matrix_ != nullptr ? matrix_->identity().handle : handle_,
                     "' was deleted, expired or gave way to others during its upload"));
  }

  // A random handle that no client was told is nobody's.
  void DropUnheard() {
    if (const ResidentRef unheard = unheard_.lock()) engine()->residents().Drop(unheard);
    unheard_.reset();
  }

  ResidentRef matrix_;                        // while a message is looked at, or complete
  std::weak_ptr<ResidentMatrix> unfinished_;  // between messages
  std::string handle_;                        // of that
  std::weak_ptr<ResidentMatrix> unheard_;     // of a handle that no client knows yet
  bool may_fit_later_ = false;
};

}  // namespace

bool IsMatrixMethod(const std::string& method) {
  return method == kUpload || method == kDownload || method == kList || method == kDelete ||
         method == kStreamMethod;
}

RawReactor* StartMatrixCall(CallContext* context, grpc::CallbackServerContext* grpc_context,
                            const std::string& method) {
  if (method == kUpload) {
    return MatrixCall::Start(std::make_shared<UploadCall>(context, grpc_context));
  }
  if (method == kDownload) {
    return MatrixCall::Start(std::make_shared<DownloadCall>(context, grpc_context));
  }
  if (method == kList) {
    return MatrixCall::Start(std::make_shared<ListCall>(context, grpc_context));
  }
  if (method == kDelete) {
    return MatrixCall::Start(std::make_shared<DeleteCall>(context, grpc_context));
  }
  if (method == kStreamMethod) {
    return MatrixCall::Start(std::make_shared<StreamCall>(context, grpc_context));
  }
  return nullptr;
}

}  // namespace tcgemm
