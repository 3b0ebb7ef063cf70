#include "bench/echo_server.h"

#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/codegen/server_callback_handlers.h>
#include <grpcpp/impl/codegen/service_type.h>
#include <grpcpp/server_posix.h>

#include <string>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "server/rpc/unix_listener.h"

namespace tcgemm {
namespace {

using Reactor = grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>;
constexpr char kPath[] = "/tcgemm.v1.MatmulService/Matmul";

// Reads one message, forgets it, answers.
class EchoCall final : public Reactor {
 public:
  explicit EchoCall(const std::vector<char>* answer) : answer_(answer) { StartRead(&request_); }

 private:
  void OnReadDone(bool ok) override {
    request_.Clear();
    if (!ok) {
      Finish(grpc::Status::CANCELLED);
      return;
    }
    const grpc::Slice slice(const_cast<char*>(answer_->data()), answer_->size(), [](void*) {});
    response_ = grpc::ByteBuffer(&slice, 1);
    StartWriteAndFinish(&response_, grpc::WriteOptions(), grpc::Status::OK);
  }
  void OnDone() override { delete this; }

  const std::vector<char>* const answer_;
  grpc::ByteBuffer request_;
  grpc::ByteBuffer response_;
};

class EchoServerImpl final : public EchoServer, private grpc::Service {
 public:
  explicit EchoServerImpl(size_t response_bytes) : answer_(response_bytes, 'x') {
    AddMethod(new grpc::internal::RpcServiceMethod(kPath, grpc::internal::RpcMethod::BIDI_STREAMING,
                                                   nullptr));
    MarkMethodCallback(
        0,
        new grpc::internal::CallbackBidiHandler<grpc::ByteBuffer, grpc::ByteBuffer>(
            [this](grpc::CallbackServerContext*) -> Reactor* { return new EchoCall(&answer_); }));
  }
  ~EchoServerImpl() override {
    if (listener_ != nullptr) listener_->StopAccepting();
    if (server_ != nullptr) server_->Shutdown(std::chrono::system_clock::now());
  }

  absl::Status Listen(const std::string& address) {
    grpc::ServerBuilder builder;
    builder.SetMaxReceiveMessageSize(-1);
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    builder.RegisterService(this);
    int port = 0;
    const bool is_unix = address.rfind(std::string(kUnixPrefix), 0) == 0;
    if (is_unix) {
      TCGEMM_ASSIGN_OR_RETURN(listener_, UnixListener::Bind(address.substr(kUnixPrefix.size())));
      address_ = address;
    } else {
      builder.AddListeningPort(address, grpc::InsecureServerCredentials(), &port);
    }
    server_ = builder.BuildAndStart();
    if (server_ == nullptr) return absl::UnavailableError("gRPC could not start a server");
    if (is_unix) {
      TCGEMM_RETURN_IF_ERROR(listener_->StartAccepting(
          [this](int fd, uid_t) { grpc::AddInsecureChannelFromFd(server_.get(), fd); }));
    } else {
      address_ = address.substr(0, address.rfind(':') + 1) + std::to_string(port);
    }
    return absl::OkStatus();
  }

  const std::string& address() const override { return address_; }

 private:
  const std::vector<char> answer_;
  std::string address_;
  std::unique_ptr<UnixListener> listener_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<EchoServer>> EchoServer::Start(const std::string& address,
                                                              size_t response_bytes) {
  auto server = std::make_unique<EchoServerImpl>(response_bytes);
  TCGEMM_RETURN_IF_ERROR(server->Listen(address));
  return server;
}

}  // namespace tcgemm
