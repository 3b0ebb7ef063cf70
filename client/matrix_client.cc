#include "client/matrix_client.h"

#include <grpcpp/client_context.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/crc32c.h"
#include "base/status_macros.h"
#include "client/channel.h"
#include "matrix/npy.h"
#include "tcgemm/v1/matmul.grpc.pb.h"

namespace tcgemm::client {
namespace {

constexpr size_t kRangeBytes = size_t{1} << 20;

absl::Status ToAbsl(const grpc::Status& status) {
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

absl::Status SetDeadline(const CallOptions& options, grpc::ClientContext& context) {
  if (options.timeout <= Nanos(0)) {
    return absl::InvalidArgumentError("CallOptions.timeout is required and must be > 0");
  }
  context.set_deadline(gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                                    gpr_time_from_nanos(options.timeout.count(), GPR_TIMESPAN)));
  return absl::OkStatus();
}

size_t DenseBytes(const MatrixView& matrix) {
  return static_cast<size_t>(matrix.rows) * static_cast<size_t>(matrix.cols) *
         DTypeSize(matrix.dtype);
}

// Bytes [begin, end) of the dense matrix.
std::string Gather(const MatrixView& matrix, size_t begin, size_t end) {
  const size_t size = DTypeSize(matrix.dtype);
  const size_t row_bytes = static_cast<size_t>(matrix.cols) * size;
  std::string data;
  data.reserve(end - begin);
  while (begin < end) {
    const size_t row = begin / row_bytes;
    const size_t column = begin % row_bytes;
    const size_t bytes = std::min(end - begin, row_bytes - column);
    data.append(static_cast<const char*>(matrix.data) +
                    row * static_cast<size_t>(matrix.ld) * size + column,
                bytes);
    begin += bytes;
  }
  return data;
}

absl::Status CheckView(const MatrixView& matrix) {
  if (matrix.rows < 1 || matrix.cols < 1) {
    return absl::InvalidArgumentError("a matrix to send must not be empty");
  }
  if (matrix.ld < matrix.cols || matrix.data == nullptr) {
    return absl::InvalidArgumentError("a matrix to send must have data and ld >= cols");
  }
  return absl::OkStatus();
}

absl::Status CheckOperand(const MatrixView& matrix) {
  if (matrix.dtype == DType::kBf16) return CheckView(matrix);
  return absl::InvalidArgumentError("a matrix to send must be bf16");
}

absl::Status FillFactor(const Factor& factor, v1::Operand& operand) {
  if (!factor.handle.empty()) {
    operand.set_handle(factor.handle);
    operand.set_transposed(factor.transposed);
    return absl::OkStatus();
  }
  TCGEMM_RETURN_IF_ERROR(CheckView(factor.view));
  operand.set_rows(factor.view.rows);
  operand.set_cols(factor.view.cols);
  operand.set_dtype(factor.view.dtype == DType::kFp32 ? v1::FP32 : v1::BF16);
  operand.set_transposed(factor.view.transposed);
  operand.set_inline_(Gather(factor.view, 0, DenseBytes(factor.view)));
  return absl::OkStatus();
}

absl::Status FillOperand(const Factor& factor, v1::Operand& operand) {
  if (factor.handle.empty()) TCGEMM_RETURN_IF_ERROR(CheckOperand(factor.view));
  return FillFactor(factor, operand);
}

absl::Status FillEpilogue(const FactorEpilogue& epilogue, v1::MatmulRequest& request) {
  if (epilogue.alpha != 1) request.set_alpha(epilogue.alpha);
  if (epilogue.beta != 0) request.set_beta(epilogue.beta);
  if (epilogue.c.has_value()) {
    TCGEMM_RETURN_IF_ERROR(FillFactor(*epilogue.c, *request.mutable_c()));
  }
  if (epilogue.bias.has_value()) {
    TCGEMM_RETURN_IF_ERROR(FillFactor(*epilogue.bias, *request.mutable_bias()));
  }
  request.set_activation(static_cast<v1::Activation>(epilogue.activation));
  return absl::OkStatus();
}

MatmulInfo InfoOf(const v1::MatmulResponse& response) {
  const v1::Timings& times = response.timings();
  return {.kernel = response.kernel(),
          .tflops = response.tflops(),
          .batched_with = response.batched_with(),
          .attempts = 1,
          .receive = Nanos(times.receive_ns()),
          .decode = Nanos(times.decode_ns()),
          .queue = Nanos(times.queue_ns()),
          .copy_in = Nanos(times.copy_in_ns()),
          .kernel_time = Nanos(times.kernel_ns()),
          .verify = Nanos(times.verify_ns()),
          .copy_out = Nanos(times.copy_out_ns())};
}

class GrpcMatrixClient final : public MatrixClient {
 public:
  explicit GrpcMatrixClient(const std::shared_ptr<grpc::Channel>& channel)
      : stub_(v1::MatmulService::NewStub(channel)) {}

  absl::StatusOr<std::string> Upload(const MatrixView& matrix, const UploadOptions& upload,
                                     const CallOptions& options) override {
    TCGEMM_RETURN_IF_ERROR(CheckOperand(matrix));
    v1::UploadMatrixRequest first;
    v1::UploadMatrixRequest::Header& header = *first.mutable_header();
    header.set_name(upload.name);
    header.set_rows(matrix.rows);
    header.set_cols(matrix.cols);
    header.set_dtype(v1::BF16);
    header.set_ttl_seconds(std::chrono::duration_cast<std::chrono::seconds>(upload.ttl).count());
    TCGEMM_ASSIGN_OR_RETURN(const v1::UploadMatrixResponse response,
                            Send(first, matrix, {{0, DenseBytes(matrix)}}, options));
    if (response.complete()) return response.handle();
    return absl::DataLossError("the server says that the matrix is not there in full");
  }

  absl::Status Resume(const std::string& handle, const MatrixView& matrix,
                      const CallOptions& options) override {
    TCGEMM_RETURN_IF_ERROR(CheckOperand(matrix));
    v1::UploadMatrixRequest first;
    first.mutable_header()->set_handle(handle);
    first.mutable_header()->set_rows(matrix.rows);
    first.mutable_header()->set_cols(matrix.cols);
    first.mutable_header()->set_dtype(v1::BF16);
    TCGEMM_ASSIGN_OR_RETURN(const v1::UploadMatrixResponse there, Send(first, matrix, {}, options));
    std::vector<Range> missing;
    size_t at = 0;
    for (const v1::ByteRange& range : there.present()) {
      missing.push_back({at, static_cast<size_t>(range.offset())});
      at = static_cast<size_t>(range.offset() + range.length());
    }
    missing.push_back({at, DenseBytes(matrix)});
    TCGEMM_ASSIGN_OR_RETURN(const v1::UploadMatrixResponse response,
                            Send(first, matrix, missing, options));
    if (response.complete()) return absl::OkStatus();
    return absl::DataLossError("the server says that the matrix is not there in full");
  }

  absl::Status Download(const std::string& handle, Matrix& matrix,
                        const CallOptions& options) override {
    grpc::ClientContext context;
    TCGEMM_RETURN_IF_ERROR(SetDeadline(options, context));
    v1::DownloadMatrixRequest request;
    request.set_handle(handle);
    const auto reader = stub_->DownloadMatrix(&context, request);
    absl::Status wrong;
    size_t at = 0;
    for (v1::DownloadMatrixResponse chunk; wrong.ok() && reader->Read(&chunk);) {
      wrong = Take(chunk, at, matrix);
    }
    if (!wrong.ok()) context.TryCancel();
    const grpc::Status status = reader->Finish();
    TCGEMM_RETURN_IF_ERROR(wrong);
    TCGEMM_RETURN_IF_ERROR(ToAbsl(status));
    if (at == 0 || at != matrix.bytes()) return absl::DataLossError("the download ended early");
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<StoredMatrix>> List(const CallOptions& options) override {
    grpc::ClientContext context;
    TCGEMM_RETURN_IF_ERROR(SetDeadline(options, context));
    v1::ListMatricesResponse response;
    TCGEMM_RETURN_IF_ERROR(ToAbsl(stub_->ListMatrices(&context, {}, &response)));
    std::vector<StoredMatrix> matrices;
    for (const v1::MatrixInfo& info : response.matrices()) {
      matrices.push_back({.handle = info.handle(),
                          .name = info.name(),
                          .rows = info.rows(),
                          .cols = info.cols(),
                          .dtype = info.dtype() == v1::FP32 ? DType::kFp32 : DType::kBf16,
                          .bytes = info.bytes(),
                          .preloaded = info.preloaded(),
                          .complete = info.complete()});
    }
    return matrices;
  }

  absl::Status Delete(const std::string& handle, const CallOptions& options) override {
    grpc::ClientContext context;
    TCGEMM_RETURN_IF_ERROR(SetDeadline(options, context));
    v1::DeleteMatrixRequest request;
    request.set_handle(handle);
    v1::DeleteMatrixResponse response;
    return ToAbsl(stub_->DeleteMatrix(&context, request, &response));
  }

  absl::StatusOr<Product> MultiplyWith(const FactorEpilogue& epilogue, const Factor& a,
                                       const Factor& b, DType output, bool keep,
                                       const std::string& keep_name, Matrix& d,
                                       const CallOptions& options) override {
    grpc::ClientContext context;
    TCGEMM_RETURN_IF_ERROR(SetDeadline(options, context));
    v1::MatmulRequest request;
    TCGEMM_RETURN_IF_ERROR(FillOperand(a, *request.mutable_a()));
    TCGEMM_RETURN_IF_ERROR(FillOperand(b, *request.mutable_b()));
    TCGEMM_RETURN_IF_ERROR(FillEpilogue(epilogue, request));
    request.set_output_dtype(output == DType::kFp32 ? v1::FP32 : v1::BF16);
    if (keep) request.mutable_output()->set_handle(keep_name);
    v1::MatmulResponse response;
    const TimePoint started = Clock::Real()->Now();
    TCGEMM_RETURN_IF_ERROR(ToAbsl(stub_->Matmul(&context, request, &response)));
    Product product{.info = InfoOf(response),
                    .handle = response.handle(),
                    .rows = response.rows(),
                    .cols = response.cols()};
    product.info.round_trip = Clock::Real()->Now() - started;
    if (keep) {
      if (product.handle.empty()) return absl::DataLossError("the server kept no result");
      return product;
    }
    // Compared as doubles: what a server says must not overflow here.
    const double bytes = static_cast<double>(product.rows) * static_cast<double>(product.cols) *
                         static_cast<double>(DTypeSize(output));
    if (product.rows < 1 || product.cols < 1 || bytes != static_cast<double>(response.d().size())) {
      return absl::DataLossError("the response is not the product that was asked for");
    }
    d.Reshape(product.rows, product.cols, output);
    std::memcpy(d.data<char>(), response.d().data(), response.d().size());
    return product;
  }

 private:
  struct Range {
    size_t begin = 0;
    size_t end = 0;
  };

  absl::StatusOr<v1::UploadMatrixResponse> Send(const v1::UploadMatrixRequest& first,
                                                const MatrixView& matrix,
                                                const std::vector<Range>& ranges,
                                                const CallOptions& options) {
    grpc::ClientContext context;
    TCGEMM_RETURN_IF_ERROR(SetDeadline(options, context));
    v1::UploadMatrixResponse response;
    const auto writer = stub_->UploadMatrix(&context, &response);
    bool going = writer->Write(first);
    for (const Range& range : ranges) {
      for (size_t at = range.begin; going && at < range.end; at += kRangeBytes) {
        v1::UploadMatrixRequest message;
        std::string data = Gather(matrix, at, std::min(range.end, at + kRangeBytes));
        message.mutable_range()->set_offset(static_cast<int64_t>(at));
        message.mutable_range()->set_crc32c(Crc32c(data.data(), data.size()));
        message.mutable_range()->set_data(std::move(data));
        going = writer->Write(message);
      }
    }
    if (going) writer->WritesDone();
    TCGEMM_RETURN_IF_ERROR(ToAbsl(writer->Finish()));
    return response;
  }

  static absl::Status Take(const v1::DownloadMatrixResponse& chunk, size_t& at, Matrix& matrix) {
    if (at == 0) {
      const v1::MatrixInfo& info = chunk.info();
      const bool fp32 = info.dtype() == v1::FP32;
      constexpr double kMostBytes = 0x1p40;
      const double bytes = static_cast<double>(info.rows()) * static_cast<double>(info.cols());
      if (info.rows() < 1 || info.cols() < 1 || bytes > kMostBytes) {
        return absl::DataLossError("the download does not say what matrix it is");
      }
      matrix.Reshape(info.rows(), info.cols(), fp32 ? DType::kFp32 : DType::kBf16);
    }
    const std::string& data = chunk.data();
    const bool fits = data.size() <= matrix.bytes() - at && !data.empty();
    if (!fits || chunk.offset() != static_cast<int64_t>(at) ||
        Crc32c(data.data(), data.size()) != chunk.crc32c()) {
      return absl::DataLossError(absl::StrCat("the chunk at offset ", at, " is damaged"));
    }
    std::memcpy(matrix.data<char>() + at, data.data(), data.size());
    at += data.size();
    return absl::OkStatus();
  }

  const std::unique_ptr<v1::MatmulService::Stub> stub_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<MatrixClient>> MatrixClient::Create(const ClientOptions& options) {
  TCGEMM_ASSIGN_OR_RETURN(const std::shared_ptr<grpc::Channel> channel,
                          MakeChannel(options.server));
  return std::make_unique<GrpcMatrixClient>(channel);
}

}  // namespace tcgemm::client
