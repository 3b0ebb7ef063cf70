#include "client/stream_client.h"

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/impl/rpc_method.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/sync_stream.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/crc32c.h"
#include "base/status_macros.h"
#include "client/call.h"
#include "client/channel.h"
#include "client/retry.h"
#include "client/stream_wire.h"

namespace tcgemm::client {
namespace {

constexpr char kMethod[] = "/tcgemm.v1.MatmulService/MatmulStream";
constexpr size_t kMaxPanelBytes = size_t{4} << 20;

using ByteStream = grpc::ClientReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer>;

grpc::ByteBuffer Message(const std::string& bytes) {
  const grpc::Slice slice(bytes);
  return grpc::ByteBuffer(&slice, 1);
}

absl::Status CheckOperand(const char* name, const StreamedOperand& operand) {
  if (!operand.handle.empty()) return absl::OkStatus();
  if (operand.rows < 1 || operand.cols < 1 || operand.rows > INT32_MAX ||
      operand.cols > INT32_MAX) {
    return absl::InvalidArgumentError(absl::StrCat(name, " is ", operand.rows, "x", operand.cols,
                                                   "; dimensions must be 1 to ", INT32_MAX));
  }
  if (operand.read != nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name, " has neither a handle nor bytes"));
}

absl::Status CheckAddend(absl::string_view name, const std::optional<Factor>& addend) {
  if (!addend.has_value() || !addend->handle.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, " has no handle: beside a stream it must be on the server (upload it)"));
}

absl::Status CheckProduct(const StreamedProduct& product) {
  TCGEMM_RETURN_IF_ERROR(CheckAddend("C", product.epilogue.c));
  TCGEMM_RETURN_IF_ERROR(CheckAddend("the bias", product.epilogue.bias));
  TCGEMM_RETURN_IF_ERROR(CheckOperand("A", product.a));
  TCGEMM_RETURN_IF_ERROR(CheckOperand("B", product.b));
  if (product.output != DType::kBf16 && product.output != DType::kFp32) {
    return absl::InvalidArgumentError(absl::StrCat(
        "output is ", std::string(DTypeName(product.output)), "; it must be bf16 or fp32"));
  }
  if (product.panel_bytes >= 1 && product.panel_bytes <= kMaxPanelBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("panel_bytes is ", product.panel_bytes, "; it must be 1 to ", kMaxPanelBytes));
}

// Sends the bytes of the operands from a thread of its own, until all are sent or the call ends.
class Sender {
 public:
  // `stream` and `context` must outlive it.
  Sender(const StreamedProduct& product, ByteStream* stream, grpc::ClientContext* context)
      : product_(product), stream_(stream), context_(context), thread_([this] { Run(); }) {}
  // What kept it from sending everything, other than the end of the call.
  absl::Status Join() {
    thread_.join();
    return status_;
  }

 private:
  void Run() {
    for (const auto& [field, operand] :
         {std::pair(StreamField::kB, &product_.b), std::pair(StreamField::kA, &product_.a)}) {
      if (!operand->handle.empty()) continue;
      status_ = Send(field, *operand);
      if (!status_.ok()) context_->TryCancel();
      if (!status_.ok() || ended_) return;
    }
    stream_->WritesDone();
  }

  absl::Status Send(StreamField field, const StreamedOperand& operand) {
    const size_t total = static_cast<size_t>(operand.rows) * static_cast<size_t>(operand.cols) *
                         DTypeSize(DType::kBf16);
    for (size_t at = 0; at < total && !ended_; at += product_.panel_bytes) {
      const size_t bytes = std::min(product_.panel_bytes, total - at);
      // gRPC keeps it for as long as it needs, beyond an abandoned call if it must.
      grpc_slice data = grpc_slice_malloc(bytes);
      auto* const to = reinterpret_cast<char*>(GRPC_SLICE_START_PTR(data));
      const absl::Status read = operand.read(at, absl::MakeSpan(to, bytes));
      const grpc::Slice slices[] = {
          grpc::Slice(read.ok() ? EncodePanelStart(field, at, absl::MakeConstSpan(to, bytes)) : ""),
          grpc::Slice(data, grpc::Slice::STEAL_REF)};
      TCGEMM_RETURN_IF_ERROR(read);
      ended_ = !stream_->Write(grpc::ByteBuffer(slices, 2));
    }
    return absl::OkStatus();
  }

  const StreamedProduct& product_;
  ByteStream* const stream_;
  grpc::ClientContext* const context_;
  bool ended_ = false;
  absl::Status status_;
  std::thread thread_;
};

// Takes what comes back: a header, D's panels in order, a header.
class Receiver {
 public:
  Receiver(const StreamedProduct& product, const StreamedResult& result)
      : product_(product), result_(result) {}

  // The first message.
  absl::Status Open(const grpc::ByteBuffer& message) {
    TCGEMM_ASSIGN_OR_RETURN(const Response response, Decode(message));
    if (!response.parts.header.has_value()) {
      return absl::DataLossError("the server's first message is not a header");
    }
    shape_ = *response.parts.header;
    TCGEMM_RETURN_IF_ERROR(CheckShape());
    return product_.keep ? absl::OkStatus() : result_.open(shape_.rows, shape_.cols);
  }

  absl::Status Take(const grpc::ByteBuffer& message) {
    TCGEMM_ASSIGN_OR_RETURN(const Response response, Decode(message));
    if (last_.has_value()) return absl::DataLossError("a message came after the last one");
    if (response.parts.header.has_value()) {
      last_ = response.parts.header;
      return absl::OkStatus();
    }
    if (!response.parts.panel.has_value() || product_.keep) {
      return absl::DataLossError("a message has neither header nor panel");
    }
    return TakePanel(*response.parts.panel);
  }

  // After status OK.
  absl::StatusOr<Product> Conclude() const {
    if (!last_.has_value() || (!product_.keep && received_ != total_)) {
      return absl::DataLossError(
          absl::StrCat("the stream ended after ", received_, " of ", total_, " bytes of D"));
    }
    if (product_.keep && last_->handle.empty()) {
      return absl::DataLossError("the server kept no result");
    }
    return Product{
        .info = last_->info, .handle = last_->handle, .rows = shape_.rows, .cols = shape_.cols};
  }

 private:
  // Its parts point into the slices.
  struct Response {
    std::vector<grpc::Slice> slices;
    std::vector<absl::string_view> pieces;
    StreamResponse parts;
  };

  static absl::StatusOr<Response> Decode(const grpc::ByteBuffer& message) {
    Response response;
    if (!message.Dump(&response.slices).ok()) {
      return absl::DataLossError("a response cannot be read");
    }
    for (const grpc::Slice& slice : response.slices) {
      response.pieces.emplace_back(reinterpret_cast<const char*>(slice.begin()), slice.size());
    }
    TCGEMM_ASSIGN_OR_RETURN(response.parts, DecodeStreamResponse(response.pieces));
    return response;
  }

  absl::Status CheckShape() {
    const StreamedOperand& a = product_.a;
    const StreamedOperand& b = product_.b;
    const bool a_fits = !a.handle.empty() || shape_.rows == (a.transposed ? a.cols : a.rows);
    const bool b_fits = !b.handle.empty() || shape_.cols == (b.transposed ? b.rows : b.cols);
    const bool sane = shape_.rows >= 1 && shape_.cols >= 1 && shape_.rows <= INT32_MAX &&
                      shape_.cols <= INT32_MAX && shape_.dtype == product_.output;
    if (!a_fits || !b_fits || !sane) {
      return absl::DataLossError(absl::StrCat("the server's result is ", shape_.rows, "x",
                                              shape_.cols, ": not the product asked for"));
    }
    total_ = static_cast<size_t>(shape_.rows) * static_cast<size_t>(shape_.cols) *
             DTypeSize(product_.output);
    return absl::OkStatus();
  }

  absl::Status TakePanel(const StreamResponse::Panel& panel) {
    size_t bytes = 0;
    for (absl::string_view piece : panel.data) bytes += piece.size();
    if (panel.offset != received_ || bytes == 0 || bytes > total_ - received_) {
      return absl::DataLossError(absl::StrCat("a panel of ", bytes, " bytes at offset ",
                                              panel.offset, " came, expected offset ", received_));
    }
    // Piece by piece, while it is in the cache.
    uint32_t crc = 0;
    for (absl::string_view piece : panel.data) {
      crc = ExtendCrc32c(crc, piece.data(), piece.size());
      TCGEMM_RETURN_IF_ERROR(result_.write(received_, piece));
      received_ += piece.size();
    }
    if (!panel.crc32c.has_value() || *panel.crc32c == crc) return absl::OkStatus();
    return absl::DataLossError(absl::StrCat("the ", bytes, " bytes of D at offset ", panel.offset,
                                            " were damaged on their way: CRC ", crc, ", expected ",
                                            *panel.crc32c));
  }

  const StreamedProduct& product_;
  const StreamedResult& result_;
  StreamHeader shape_;
  size_t total_ = 0;
  size_t received_ = 0;
  std::optional<StreamHeader> last_;
};

class GrpcStreamClient final : public StreamClient {
 public:
  explicit GrpcStreamClient(std::shared_ptr<grpc::Channel> channel)
      : channel_(std::move(channel)) {}

  absl::StatusOr<Product> Multiply(const StreamedProduct& product, const StreamedResult& result,
                                   const CallOptions& options) override {
    TCGEMM_RETURN_IF_ERROR(CheckProduct(product));
    absl::StatusOr<Product> made;
    TimePoint started;
    const RetryOutcome outcome = CallWithin(options, [&](TimePoint deadline) {
      started = Clock::Real()->Now();
      return Try(product, result, deadline, made);
    });
    TCGEMM_RETURN_IF_ERROR(outcome.status);
    made->info.attempts = outcome.attempts;
    made->info.round_trip = Clock::Real()->Now() - started;
    return made;
  }

 private:
  Attempt Try(const StreamedProduct& product, const StreamedResult& result, TimePoint deadline,
              absl::StatusOr<Product>& made) {
    grpc::ClientContext context;
    SetDeadline(deadline, context);
    const grpc::internal::RpcMethod method(kMethod, grpc::internal::RpcMethod::BIDI_STREAMING);
    const std::unique_ptr<ByteStream> stream(
        grpc::internal::ClientReaderWriterFactory<grpc::ByteBuffer, grpc::ByteBuffer>::Create(
            channel_.get(), method, &context));
    grpc::ByteBuffer message;
    if (!stream->Write(Message(EncodeStreamHeader(product))) || !stream->Read(&message)) {
      return Refused(stream->Finish(), context);
    }
    Receiver receiver(product, result);
    absl::Status wrong = receiver.Open(message);
    absl::Status unsent;
    if (wrong.ok()) {
      Sender sender(product, stream.get(), &context);
      while (wrong.ok() && stream->Read(&message)) wrong = receiver.Take(message);
      if (!wrong.ok()) context.TryCancel();
      unsent = sender.Join();
    } else {
      context.TryCancel();
    }
    while (stream->Read(&message)) continue;  // what came before the cancel
    absl::Status status = AttemptOf(stream->Finish(), context, *channel_).status;
    if (!wrong.ok()) status = wrong;
    if (!unsent.ok()) status = unsent;
    if (status.ok()) made = receiver.Conclude();
    // Nothing is tried twice once operands were on their way.
    return {.status = status.ok() ? made.status() : status, .pushback = Nanos(-1)};
  }

  Attempt Refused(const grpc::Status& status, const grpc::ClientContext& context) {
    Attempt result = AttemptOf(status, context, *channel_);
    if (status.ok()) {
      result.status = absl::DataLossError("the stream ended without a header");
      result.pushback = Nanos(-1);
    }
    return result;
  }

  const std::shared_ptr<grpc::Channel> channel_;
};

}  // namespace

StreamedOperand StreamView(const MatrixView& view) {
  const auto read = [view](size_t offset, absl::Span<char> to) {
    const size_t size = DTypeSize(view.dtype);
    const size_t row_bytes = static_cast<size_t>(view.cols) * size;
    const size_t pitch = static_cast<size_t>(view.ld) * size;
    const auto* const data = static_cast<const char*>(view.data);
    while (!to.empty()) {
      const size_t column = offset % row_bytes;
      // Rows that touch are one.
      const size_t together = pitch == row_bytes ? to.size() : row_bytes - column;
      const size_t bytes = std::min(to.size(), together);
      std::memcpy(to.data(), data + offset / row_bytes * pitch + column, bytes);
      to.remove_prefix(bytes);
      offset += bytes;
    }
    return absl::OkStatus();
  };
  return {.rows = view.rows, .cols = view.cols, .transposed = view.transposed, .read = read};
}

StreamedResult StreamInto(Matrix* d, DType output) {
  return {.open =
              [d, output](int64_t rows, int64_t cols) {
                d->Reshape(rows, cols, output);
                return absl::OkStatus();
              },
          .write =
              [d](size_t offset, absl::string_view bytes) {
                std::memcpy(d->data<char>() + offset, bytes.data(), bytes.size());
                return absl::OkStatus();
              }};
}

absl::StatusOr<std::unique_ptr<StreamClient>> StreamClient::Create(const ClientOptions& options) {
  TCGEMM_ASSIGN_OR_RETURN(std::shared_ptr<grpc::Channel> channel, MakeChannel(options));
  return std::make_unique<GrpcStreamClient>(std::move(channel));
}

}  // namespace tcgemm::client
