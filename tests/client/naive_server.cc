#include "tests/client/naive_server.h"

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <cstring>

#include "base/crc32c.h"
#include "kernels/tile/element_epilogue.h"
#include "matrix/bf16.h"
#include "matrix/matrix.h"
#include "tcgemm/v1/matmul.grpc.pb.h"

namespace tcgemm::client {
namespace {

MatrixView ViewOf(const v1::Operand& operand) {
  return {.data = operand.inline_().data(),
          .rows = operand.rows(),
          .cols = operand.cols(),
          .ld = operand.ld() == 0 ? operand.cols() : operand.ld(),
          .dtype = operand.dtype() == v1::FP32 ? DType::kFp32 : DType::kBf16,
          .transposed = operand.transposed()};
}

struct Place {
  int64_t i;
  int64_t j;
};

float Finish(const v1::MatmulRequest& request, float sum, const Place& at) {
  const ElementEpilogue element = {.alpha = request.has_alpha() ? request.alpha() : 1,
                                   .beta = request.beta(),
                                   .reads_c = request.beta() != 0,
                                   .has_bias = request.has_bias(),
                                   .activation = static_cast<Activation>(request.activation())};
  const bool column = request.bias().rows() != 1;
  const double c = element.reads_c ? ElementAt(ViewOf(request.c()), at.i, at.j) : 0;
  const double bias = element.has_bias
                          ? ElementAt(ViewOf(request.bias()), column ? at.i : 0, column ? 0 : at.j)
                          : 0;
  return element.Apply(sum, static_cast<float>(c), static_cast<float>(bias));
}

template <typename T>
void Append(std::string& out, T value) {
  char bytes[sizeof(T)];
  std::memcpy(bytes, &value, sizeof(T));
  out.append(bytes, sizeof(T));
}

using ServerStream = grpc::ServerReaderWriter<v1::MatmulStreamResponse, v1::MatmulStreamRequest>;

// D in three panels, as far as the fault lets it.
grpc::Status SendProduct(const v1::MatmulResponse& product, StreamFault fault,
                         ServerStream* stream) {
  const std::string& d = product.d();
  const size_t part = d.size() / 3 + 1;
  for (size_t at = 0; at < d.size(); at += part) {
    const bool second = at == part;
    v1::MatmulStreamResponse response;
    v1::Panel& panel = *response.mutable_d();
    panel.set_data(d.substr(at, part));
    panel.set_offset(static_cast<int64_t>(at) + (second && fault == StreamFault::kGap ? 1 : 0));
    panel.set_crc32c(Crc32c(panel.data().data(), panel.data().size()));
    if (second && fault == StreamFault::kWrongCrc) panel.set_crc32c(panel.crc32c() + 1);
    if (second && fault == StreamFault::kTooMuch) panel.set_data(d + d);
    if (second && fault == StreamFault::kTooLittle) break;
    if (second && fault == StreamFault::kFailsMidway) {
      return grpc::Status(grpc::StatusCode::UNAVAILABLE, "lost on the way");
    }
    stream->Write(response);
  }
  v1::MatmulStreamResponse last;
  *last.mutable_header() = product;
  last.mutable_header()->clear_d();
  if (fault != StreamFault::kNoLastHeader) stream->Write(last);
  if (fault == StreamFault::kAfterTheLast) stream->Write(last);
  return grpc::Status::OK;
}

class Service final : public v1::MatmulService::Service {
 public:
  grpc::Status MatmulStream(grpc::ServerContext* context, ServerStream* stream) override {
    ++streams;
    v1::MatmulStreamRequest message;
    if (!stream->Read(&message)) return grpc::Status::OK;
    v1::MatmulRequest request = message.header();
    if (failures.fetch_sub(1) > 0) return Fail(context);
    v1::MatmulStreamResponse first;
    const v1::Operand& a = request.a();
    const v1::Operand& b = request.b();
    first.mutable_header()->set_rows((a.transposed() ? a.cols() : a.rows()) +
                                     (fault == StreamFault::kWrongShape ? 1 : 0));
    first.mutable_header()->set_cols(b.transposed() ? b.rows() : b.cols());
    first.mutable_header()->set_dtype(request.output_dtype());
    if (fault != StreamFault::kNoHeader) stream->Write(first);
    while (stream->Read(&message)) {
      ++panels;
      const v1::Panel& panel = message.has_a() ? message.a() : message.b();
      std::string& bytes =
          *(message.has_a() ? request.mutable_a() : request.mutable_b())->mutable_inline_();
      const bool right = panel.offset() == static_cast<int64_t>(bytes.size()) &&
                         panel.crc32c() == Crc32c(panel.data().data(), panel.data().size());
      if (!right) return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "a bad panel");
      bytes += panel.data();
    }
    v1::MatmulResponse product;
    Multiply(request, &product);
    return SendProduct(product, fault, stream);
  }

  grpc::Status Matmul(grpc::ServerContext* context, const v1::MatmulRequest* request,
                      v1::MatmulResponse* response) override {
    ++calls;
    if (failures.fetch_sub(1) > 0) return Fail(context);
    Multiply(*request, response);
    return grpc::Status::OK;
  }

  grpc::Status Fail(grpc::ServerContext* context) {
    if (!pushback.empty()) context->AddTrailingMetadata("grpc-retry-pushback-ms", pushback);
    return grpc::Status(static_cast<grpc::StatusCode>(failure_code.load()), "told to fail");
  }

  void Multiply(const v1::MatmulRequest& request, v1::MatmulResponse* response) const {
    const MatrixView a = ViewOf(request.a());
    const MatrixView b = ViewOf(request.b());
    const bool fp32 = request.output_dtype() == v1::FP32;
    for (int64_t i = 0; i < a.op_rows(); ++i) {
      for (int64_t j = 0; j < b.op_cols(); ++j) {
        float sum = spoil && i == 0 && j == 0 ? 1000 : 0;
        for (int64_t k = 0; k < a.op_cols(); ++k) {
          sum += static_cast<float>(ElementAt(a, i, k) * ElementAt(b, k, j));
        }
        sum = Finish(request, sum, {i, j});
        if (fp32) {
          Append(*response->mutable_d(), sum);
        } else {
          Append(*response->mutable_d(), ToBf16(sum).bits);
        }
      }
    }
    response->set_rows(a.op_rows());
    response->set_cols(b.op_cols());
    response->set_dtype(fp32 ? v1::FP32 : v1::BF16);
    response->set_kernel("naive");
    response->mutable_timings()->set_kernel_ns(5);
  }

  grpc::Status GetServerInfo(grpc::ServerContext*, const v1::GetServerInfoRequest*,
                             v1::GetServerInfoResponse* response) override {
    response->set_device("naive");
    response->set_version("1.2.3");
    response->set_max_message_bytes(4 << 20);
    response->add_kernels("k1");
    response->add_kernels("k2");
    return grpc::Status::OK;
  }

  std::atomic<int> calls{0};
  std::atomic<int> failures{0};
  std::atomic<int> failure_code{0};
  std::atomic<bool> spoil{false};
  std::atomic<StreamFault> fault{StreamFault::kNone};
  std::atomic<int> streams{0};
  std::atomic<int> panels{0};
  std::string pushback;  // set before the calls that read it
};

}  // namespace

struct NaiveServer::State {
  Service service;
  int port = 0;
  std::unique_ptr<grpc::Server> server;
};

NaiveServer::NaiveServer() : state_(std::make_unique<State>()) {
  grpc::EnableDefaultHealthCheckService(true);
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &state_->port);
  builder.RegisterService(&state_->service);
  state_->server = builder.BuildAndStart();
}

NaiveServer::~NaiveServer() { state_->server->Shutdown(std::chrono::system_clock::now()); }

std::string NaiveServer::address() const { return "127.0.0.1:" + std::to_string(state_->port); }

void NaiveServer::FailNext(int calls, int code, const std::string& pushback_ms) {
  state_->service.pushback = pushback_ms;
  state_->service.failure_code = code;
  state_->service.failures = calls;
}

void NaiveServer::SpoilResults() { state_->service.spoil = true; }
void NaiveServer::SpoilStreams(StreamFault fault) { state_->service.fault = fault; }
int NaiveServer::stream_calls() const { return state_->service.streams; }
int NaiveServer::stream_panels() const { return state_->service.panels; }
int NaiveServer::matmul_calls() const { return state_->service.calls; }

}  // namespace tcgemm::client
