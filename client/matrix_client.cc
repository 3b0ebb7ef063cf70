#include "client/matrix_client.h"

#include <grpcpp/client_context.h>

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/call.h"
#include "client/channel.h"
#include "client/lane_policy.h"
#include "client/lanes.h"
#include "client/matrix_transfer.h"
#include "client/product_info.h"
#include "tcgemm/v1/matmul.grpc.pb.h"

namespace tcgemm::client {
namespace {

// As many as a server puts on a page (proto/tcgemm/v1/matmul.proto).
constexpr int32_t kPageMatrices = 1000;
constexpr size_t kMostMatrices = 1'000'000;  // far above what a server keeps

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
  std::string& bytes = *operand.mutable_inline_();
  bytes.resize(DenseBytes(factor.view));
  Gather(factor.view, {0, bytes.size()}, bytes.data());
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

StoredMatrix StoredOf(const v1::MatrixInfo& info) {
  return {.handle = info.handle(),
          .name = info.name(),
          .rows = info.rows(),
          .cols = info.cols(),
          .dtype = info.dtype() == v1::FP32 ? DType::kFp32 : DType::kBf16,
          .bytes = info.bytes(),
          .preloaded = info.preloaded(),
          .complete = info.complete()};
}

class GrpcMatrixClient final : public MatrixClient {
 public:
  GrpcMatrixClient(const ClientOptions& options, const std::shared_ptr<grpc::Channel>& channel)
      : asked_lanes_(options.lanes),
        channel_(channel),
        stub_(v1::MatmulService::NewStub(channel)),
        lanes_(options, channel) {}

  absl::StatusOr<std::string> Upload(const MatrixView& matrix, const UploadOptions& upload,
                                     const CallOptions& options) override {
    return UploadMatrix(lanes_, asked_lanes_, matrix, upload, options);
  }
  absl::Status Resume(const std::string& handle, const MatrixView& matrix,
                      const CallOptions& options) override {
    return ResumeMatrix(lanes_, asked_lanes_, handle, matrix, options);
  }
  absl::Status Download(const std::string& handle, Matrix& matrix,
                        const CallOptions& options) override {
    return DownloadMatrix(lanes_, asked_lanes_, handle, matrix, options);
  }

  absl::StatusOr<std::vector<StoredMatrix>> List(const CallOptions& options) override {
    std::vector<StoredMatrix> matrices;
    v1::ListMatricesRequest request;
    request.set_page_size(kPageMatrices);
    const RetryOutcome outcome = CallWithin(options, [&](TimePoint deadline) -> Attempt {
      while (true) {
        grpc::ClientContext context;
        SetDeadline(deadline, context);
        v1::ListMatricesResponse page;
        const grpc::Status status = stub_->ListMatrices(&context, request, &page);
        if (!status.ok()) return AttemptOf(status, context, *channel_);
        for (const v1::MatrixInfo& info : page.matrices()) matrices.push_back(StoredOf(info));
        if (page.next_page_token().empty()) return {};
        // Tokens that go round would not end before the deadline.
        if (page.matrices().empty() || matrices.size() > kMostMatrices) {
          return {.status = absl::DataLossError("the pages of the list do not end")};
        }
        request.set_page_token(page.next_page_token());
      }
    });
    TCGEMM_RETURN_IF_ERROR(outcome.status);
    return matrices;
  }

  absl::Status Delete(const std::string& handle, const CallOptions& options) override {
    v1::DeleteMatrixRequest request;
    request.set_handle(handle);
    bool may_be_done = false;
    return CallWithin(options,
                      [&](TimePoint deadline) -> Attempt {
                        grpc::ClientContext context;
                        SetDeadline(deadline, context);
                        v1::DeleteMatrixResponse response;
                        const grpc::Status status =
                            stub_->DeleteMatrix(&context, request, &response);
                        if (may_be_done && status.error_code() == grpc::StatusCode::NOT_FOUND)
                          return {};
                        may_be_done = true;
                        return AttemptOf(status, context, *channel_);
                      })
        .status;
  }

  absl::StatusOr<Product> MultiplyWith(const FactorEpilogue& epilogue, const Factor& a,
                                       const Factor& b, DType output, bool keep,
                                       const std::string& keep_name, Matrix& d,
                                       const CallOptions& options) override {
    v1::MatmulRequest request;
    TCGEMM_RETURN_IF_ERROR(FillOperand(a, *request.mutable_a()));
    TCGEMM_RETURN_IF_ERROR(FillOperand(b, *request.mutable_b()));
    TCGEMM_RETURN_IF_ERROR(FillEpilogue(epilogue, request));
    if (options.fastest) request.set_reduction(v1::FASTEST);
    request.set_output_dtype(output == DType::kFp32 ? v1::FP32 : v1::BF16);
    if (keep) request.mutable_output()->set_handle(keep_name);
    v1::MatmulResponse response;
    TimePoint started;
    bool may_be_kept = false;
    const RetryOutcome outcome = CallWithin(options, [&](TimePoint deadline) -> Attempt {
      started = Clock::Real()->Now();
      grpc::ClientContext context;
      SetDeadline(deadline, context);
      response.Clear();
      const grpc::Status status = stub_->Matmul(&context, request, &response);
      Attempt attempt = AttemptOf(status, context, *channel_);
      if (may_be_kept && absl::IsAlreadyExists(attempt.status)) {
        attempt.status = absl::AlreadyExistsError(absl::StrCat(
            status.error_message(),
            " (it may be the result of an attempt of this call whose answer was lost)"));
      }
      may_be_kept = keep;
      return attempt;
    });
    TCGEMM_RETURN_IF_ERROR(outcome.status);
    Product product{.info = MatmulInfoOf(response),
                    .handle = response.handle(),
                    .rows = response.rows(),
                    .cols = response.cols()};
    product.info.attempts = outcome.attempts;
    product.info.round_trip = Clock::Real()->Now() - started;
    if (keep) {
      if (product.handle.empty()) return absl::DataLossError("the server kept no result");
      return product;
    }
    TCGEMM_RETURN_IF_ERROR(TakeResult(response, output, d));
    return product;
  }

 private:
  static absl::Status TakeResult(const v1::MatmulResponse& response, DType output, Matrix& d) {
    // Compared as doubles: what a server says must not overflow here.
    const double bytes = static_cast<double>(response.rows()) *
                         static_cast<double>(response.cols()) *
                         static_cast<double>(DTypeSize(output));
    if (response.rows() < 1 || response.cols() < 1 ||
        bytes != static_cast<double>(response.d().size())) {
      return absl::DataLossError("the response is not the product that was asked for");
    }
    d.Reshape(response.rows(), response.cols(), output);
    std::memcpy(d.data<char>(), response.d().data(), response.d().size());
    return absl::OkStatus();
  }

  const int asked_lanes_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<v1::MatmulService::Stub> stub_;
  Lanes lanes_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<MatrixClient>> MatrixClient::Create(const ClientOptions& options) {
  TCGEMM_RETURN_IF_ERROR(CheckLanes(options.lanes));
  TCGEMM_ASSIGN_OR_RETURN(const std::shared_ptr<grpc::Channel> channel, MakeChannel(options));
  return std::make_unique<GrpcMatrixClient>(options, channel);
}

}  // namespace tcgemm::client
