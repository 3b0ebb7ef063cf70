#include "client/client.h"

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/impl/client_unary_call.h>
#include <grpcpp/impl/rpc_method.h>
#include <grpcpp/support/byte_buffer.h>

#include <utility>

#include "absl/functional/function_ref.h"
#include "base/status_macros.h"
#include "client/call.h"
#include "client/channel.h"
#include "client/lane_policy.h"
#include "client/laned_client.h"
#include "client/wire.h"
#include "client/wire_reader.h"
#include "tcgemm/v1/matmul.pb.h"

namespace tcgemm::client {
namespace {

constexpr char kMatmul[] = "/tcgemm.v1.MatmulService/Matmul";
constexpr char kGetServerInfo[] = "/tcgemm.v1.MatmulService/GetServerInfo";
constexpr char kHealthCheck[] = "/grpc.health.v1.Health/Check";

// The request's bytes, and what the answer's are given to.
struct UnaryCall {
  const char* method = nullptr;
  absl::Span<const absl::string_view> request;
  absl::FunctionRef<absl::Status(absl::Span<const absl::string_view>)> on_response;
};

// Copies. gRPC may hold a request's bytes beyond the end of an abandoned call, in the middle of a
// write to a peer that does not read; a call whose slices pointed into the caller's matrices would
// have to wait for that, past its deadline.
grpc::ByteBuffer MakeBuffer(absl::Span<const absl::string_view> pieces) {
  std::vector<grpc::Slice> slices;
  for (absl::string_view piece : pieces) {
    if (!piece.empty()) slices.emplace_back(piece.data(), piece.size());
  }
  return grpc::ByteBuffer(slices.data(), slices.size());
}

class GrpcClient final : public Client {
 public:
  explicit GrpcClient(std::shared_ptr<grpc::Channel> channel) : channel_(std::move(channel)) {}

  absl::StatusOr<MatmulInfo> Matmul(const MatrixView& a, const MatrixView& b, DType output,
                                    Matrix& d, const CallOptions& options) override {
    return MatmulWith({}, a, b, output, d, options);
  }

  absl::StatusOr<MatmulInfo> MatmulWith(const Epilogue& epilogue, const MatrixView& a,
                                        const MatrixView& b, DType output, Matrix& d,
                                        const CallOptions& options) override {
    TCGEMM_ASSIGN_OR_RETURN(const EncodedRequest request,
                            EncodeMatmulRequest(a, b, output, epilogue, options.fastest));
    const ExpectedProduct expected{.rows = a.op_rows(), .cols = b.op_cols(), .dtype = output};
    MatmulInfo info;
    const auto decode = [&](absl::Span<const absl::string_view> response) -> absl::Status {
      TCGEMM_ASSIGN_OR_RETURN(info, DecodeMatmulResponse(response, expected, d));
      return absl::OkStatus();
    };
    TCGEMM_ASSIGN_OR_RETURN(const Served served,
                            Call({kMatmul, request.pieces(), decode}, options));
    info.attempts = served.attempts;
    info.round_trip = served.round_trip;
    return info;
  }

  absl::StatusOr<ServerInfo> GetServerInfo(const CallOptions& options) override {
    v1::GetServerInfoResponse response;
    const auto decode = [&](absl::Span<const absl::string_view> bytes) -> absl::Status {
      if (response.ParseFromString(WireReader(bytes).ReadRest())) return absl::OkStatus();
      return absl::DataLossError("the response is not a GetServerInfoResponse");
    };
    TCGEMM_RETURN_IF_ERROR(Call({kGetServerInfo, {}, decode}, options).status());
    return ServerInfo{
        .version = response.version(),
        .commit = response.commit(),
        .device = response.device(),
        .device_description = response.device_description(),
        .backend = response.backend(),
        .cuda = response.cuda(),
        .ready = response.ready(),
        .draining = response.draining(),
        .max_message_bytes = response.max_message_bytes(),
        .max_request_memory_bytes = response.max_request_memory_bytes(),
        .max_batch = response.max_batch(),
        .max_queue_delay_us = response.max_queue_delay_us(),
        .uptime_seconds = response.uptime_seconds(),
        .kernels = {response.kernels().begin(), response.kernels().end()},
    };
  }

  absl::StatusOr<Health> CheckHealth(const std::string& service,
                                     const CallOptions& options) override {
    const std::string request = EncodeHealthCheckRequest(service);
    const absl::string_view pieces[] = {request};
    Health health = Health::kUnknown;
    const auto decode = [&](absl::Span<const absl::string_view> response) -> absl::Status {
      TCGEMM_ASSIGN_OR_RETURN(health, DecodeHealthCheckResponse(response));
      return absl::OkStatus();
    };
    const absl::Status status = Call({kHealthCheck, pieces, decode}, options).status();
    if (absl::IsNotFound(status)) return Health::kUnknown;
    TCGEMM_RETURN_IF_ERROR(status);
    return health;
  }

 private:
  struct Served {
    int attempts = 0;
    Nanos round_trip{0};  // of the last attempt
  };

  absl::StatusOr<Served> Call(const UnaryCall& call, const CallOptions& options) {
    TimePoint started;
    const RetryOutcome outcome = CallWithin(options, [&](TimePoint deadline) {
      started = Clock::Real()->Now();
      return Try(call, deadline);
    });
    TCGEMM_RETURN_IF_ERROR(outcome.status);
    return Served{.attempts = outcome.attempts, .round_trip = Clock::Real()->Now() - started};
  }

  Attempt Try(const UnaryCall& call, TimePoint deadline) {
    grpc::ClientContext context;
    SetDeadline(deadline, context);
    grpc::ByteBuffer request = MakeBuffer(call.request);
    grpc::ByteBuffer response;
    const grpc::internal::RpcMethod method(call.method, grpc::internal::RpcMethod::NORMAL_RPC);
    // Public through generated stubs only; they would make us name a message type.
    const grpc::Status status =
        grpc::internal::BlockingUnaryCall<grpc::ByteBuffer, grpc::ByteBuffer>(
            channel_.get(), method, &context, request, &response);
    if (!status.ok()) return AttemptOf(status, context, *channel_);
    std::vector<grpc::Slice> slices;
    std::vector<absl::string_view> pieces;
    if (const absl::Status dumped = Dump(response, slices, pieces); !dumped.ok()) {
      return {.status = dumped};
    }
    return {.status = call.on_response(pieces)};
  }

  const std::shared_ptr<grpc::Channel> channel_;
};

}  // namespace

absl::StatusOr<MatmulInfo> Client::MatmulWith(const Epilogue& epilogue, const MatrixView& a,
                                              const MatrixView& b, DType output, Matrix& d,
                                              const CallOptions& options) {
  if (epilogue.is_default()) return Matmul(a, b, output, d, options);
  return absl::UnimplementedError("this client sends no alpha, C, bias or activation");
}

absl::StatusOr<std::unique_ptr<Client>> Client::Create(const ClientOptions& options) {
  TCGEMM_RETURN_IF_ERROR(CheckLanes(options.lanes));
  TCGEMM_ASSIGN_OR_RETURN(std::shared_ptr<grpc::Channel> channel, MakeChannel(options));
  auto single = std::make_unique<GrpcClient>(channel);
  if (options.lanes == 1) return single;
  return MakeLanedClient(options, std::move(channel), std::move(single), LanesFor);
}

}  // namespace tcgemm::client
