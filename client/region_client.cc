#include "client/region_client.h"

#include <grpcpp/client_context.h>

#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/channel.h"
#include "client/product_info.h"
#include "tcgemm/v1/matmul.grpc.pb.h"

namespace tcgemm::client {
namespace {

void PutRegion(const SharedRegion& region, const void* data, v1::RegionRef& reference) {
  reference.set_region(region.name());
  reference.set_offset(static_cast<int64_t>(region.OffsetOf(data)));
}

// The rows one after the other.
std::string Gather(const MatrixView& view) {
  const size_t row_bytes = static_cast<size_t>(view.cols) * DTypeSize(view.dtype);
  const size_t pitch = static_cast<size_t>(view.ld) * DTypeSize(view.dtype);
  std::string bytes(static_cast<size_t>(view.rows) * row_bytes, '\0');
  for (size_t row = 0; row < static_cast<size_t>(view.rows); ++row) {
    std::memcpy(&bytes[row * row_bytes], static_cast<const char*>(view.data) + row * pitch,
                row_bytes);
  }
  return bytes;
}

absl::Status PutOperand(const std::string& name, const SharedRegion& region, const Factor& factor,
                        v1::Operand& operand) {
  if (!factor.handle.empty()) {
    operand.set_handle(factor.handle);
    operand.set_transposed(factor.transposed);
    return absl::OkStatus();
  }
  const MatrixView& view = factor.view;
  if (view.dtype != DType::kBf16 || view.rows < 1 || view.cols < 1 || view.ld < view.cols) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, " must be a bf16 matrix that is not empty, with ld ≥ cols"));
  }
  operand.set_rows(view.rows);
  operand.set_cols(view.cols);
  operand.set_dtype(v1::BF16);
  operand.set_transposed(view.transposed);
  if (region.Contains(view.data, view.span_bytes())) {
    operand.set_ld(view.ld);
    PutRegion(region, view.data, *operand.mutable_region());
    return absl::OkStatus();
  }
  if (region.Contains(view.data, 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, " begins in the region and ends beyond it"));
  }
  operand.set_inline_(Gather(view));
  return absl::OkStatus();
}

absl::Status PutAddend(const std::string& name, const Factor& factor, v1::Operand& operand) {
  if (!factor.handle.empty()) {
    operand.set_handle(factor.handle);
    return absl::OkStatus();
  }
  const MatrixView& view = factor.view;
  if (view.rows < 1 || view.cols < 1 || view.ld < view.cols || view.transposed) {
    return absl::InvalidArgumentError(absl::StrCat(
        name, " must be a matrix that is neither empty nor transposed, with ld ≥ cols"));
  }
  operand.set_rows(view.rows);
  operand.set_cols(view.cols);
  operand.set_dtype(view.dtype == DType::kFp32 ? v1::FP32 : v1::BF16);
  operand.set_inline_(Gather(view));
  return absl::OkStatus();
}

absl::Status PutEpilogue(const FactorEpilogue& epilogue, v1::MatmulRequest& request) {
  if (epilogue.alpha != 1) request.set_alpha(epilogue.alpha);
  if (epilogue.beta != 0) request.set_beta(epilogue.beta);
  request.set_activation(static_cast<v1::Activation>(epilogue.activation));
  if (epilogue.c.has_value()) {
    TCGEMM_RETURN_IF_ERROR(PutAddend("C", *epilogue.c, *request.mutable_c()));
  }
  if (!epilogue.bias.has_value()) return absl::OkStatus();
  return PutAddend("the bias", *epilogue.bias, *request.mutable_bias());
}

// As far as the views tell.
absl::Status CheckResult(const SharedRegion& region, const Factor& a, const Factor& b,
                         const MutableMatrixView& d) {
  if (d.transposed || d.ld != d.cols || d.rows < 1 || d.cols < 1 ||
      (d.dtype != DType::kBf16 && d.dtype != DType::kFp32)) {
    return absl::InvalidArgumentError("D must be a dense bf16 or fp32 matrix that is not empty");
  }
  const int64_t m = a.handle.empty() ? a.view.op_rows() : d.rows;
  const int64_t n = b.handle.empty() ? b.view.op_cols() : d.cols;
  if (m != d.rows || n != d.cols) {
    return absl::InvalidArgumentError(
        absl::StrCat("D is ", d.rows, "x", d.cols, ", the product ", m, "x", n));
  }
  if (region.Contains(d.data, d.span_bytes())) return absl::OkStatus();
  return absl::InvalidArgumentError("D does not lie in the region");
}

class GrpcRegionClient final : public RegionClient {
 public:
  GrpcRegionClient(std::string server, std::shared_ptr<grpc::Channel> channel)
      : server_(std::move(server)),
        channel_(std::move(channel)),
        stub_(v1::MatmulService::NewStub(channel_)) {}

  absl::StatusOr<std::unique_ptr<SharedRegion>> Open(size_t bytes,
                                                     const CallOptions& options) override {
    return SharedRegion::Open(channel_,
                              {.server = server_, .bytes = bytes, .timeout = options.timeout});
  }

  absl::StatusOr<MatmulInfo> MultiplyWith(const FactorEpilogue& epilogue,
                                          const SharedRegion& region, const Factor& a,
                                          const Factor& b, const MutableMatrixView& d,
                                          const CallOptions& options) override {
    if (options.timeout <= Nanos(0)) {
      return absl::InvalidArgumentError("CallOptions.timeout is required and must be > 0");
    }
    TCGEMM_RETURN_IF_ERROR(CheckResult(region, a, b, d));
    v1::MatmulRequest request;
    TCGEMM_RETURN_IF_ERROR(PutOperand("A", region, a, *request.mutable_a()));
    TCGEMM_RETURN_IF_ERROR(PutOperand("B", region, b, *request.mutable_b()));
    TCGEMM_RETURN_IF_ERROR(PutEpilogue(epilogue, request));
    if (options.fastest) request.set_reduction(v1::FASTEST);
    request.set_output_dtype(d.dtype == DType::kFp32 ? v1::FP32 : v1::BF16);
    PutRegion(region, d.data, *request.mutable_output()->mutable_region());
    // Clearer than the server's NOT_FOUND.
    if (const absl::Status held = region.status(); !held.ok()) {
      return absl::UnavailableError(
          absl::StrCat("the server no longer holds the region: ", held.ToString()));
    }
    grpc::ClientContext context;
    context.set_deadline(gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                                      gpr_time_from_nanos(options.timeout.count(), GPR_TIMESPAN)));
    v1::MatmulResponse response;
    const TimePoint started = Clock::Real()->Now();
    const grpc::Status status = stub_->Matmul(&context, request, &response);
    if (!status.ok()) {
      return absl::Status(static_cast<absl::StatusCode>(status.error_code()),
                          status.error_message());
    }
    if (response.rows() != d.rows || response.cols() != d.cols || !response.d().empty()) {
      return absl::DataLossError(absl::StrCat("the server wrote a ", response.rows(), "x",
                                              response.cols(), " product where D is ", d.rows, "x",
                                              d.cols));
    }
    MatmulInfo info = MatmulInfoOf(response);
    info.round_trip = Clock::Real()->Now() - started;
    return info;
  }

 private:
  const std::string server_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<v1::MatmulService::Stub> stub_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<RegionClient>> RegionClient::Create(const ClientOptions& options) {
  if (!absl::StartsWith(options.server, "unix:")) {
    return absl::InvalidArgumentError(absl::StrCat(
        "memory is shared over a unix socket alone: --server unix:/path, not ", options.server));
  }
  TCGEMM_ASSIGN_OR_RETURN(std::shared_ptr<grpc::Channel> channel, MakeChannel(options));
  return std::make_unique<GrpcRegionClient>(options.server, std::move(channel));
}

}  // namespace tcgemm::client
