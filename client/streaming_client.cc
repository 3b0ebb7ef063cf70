#include "client/streaming_client.h"

#include <string>
#include <utility>

#include "base/status_macros.h"
#include "client/stream_client.h"

namespace tcgemm::client {
namespace {

class StreamingClient final : public Client {
 public:
  StreamingClient(std::unique_ptr<Client> rest, std::unique_ptr<StreamClient> streams)
      : rest_(std::move(rest)), streams_(std::move(streams)) {}

  absl::StatusOr<MatmulInfo> Matmul(const MatrixView& a, const MatrixView& b, DType output,
                                    Matrix& d, const CallOptions& options) override {
    return MatmulWith({}, a, b, output, d, options);
  }
  absl::StatusOr<MatmulInfo> MatmulWith(const Epilogue& epilogue, const MatrixView& a,
                                        const MatrixView& b, DType output, Matrix& d,
                                        const CallOptions& options) override {
    if (epilogue.reads_c() || epilogue.has_bias()) {
      return absl::UnimplementedError(
          "a stream takes no C and no bias of its own: upload them, and name their handles");
    }
    const StreamedProduct product = {
        .a = StreamView(a),
        .b = StreamView(b),
        .epilogue = {.alpha = epilogue.alpha, .activation = epilogue.activation},
        .output = output};
    TCGEMM_ASSIGN_OR_RETURN(Product made,
                            streams_->Multiply(product, StreamInto(&d, output), options));
    return std::move(made.info);
  }
  absl::StatusOr<ServerInfo> GetServerInfo(const CallOptions& options) override {
    return rest_->GetServerInfo(options);
  }
  absl::StatusOr<Health> CheckHealth(const std::string& service,
                                     const CallOptions& options) override {
    return rest_->CheckHealth(service, options);
  }

 private:
  const std::unique_ptr<Client> rest_;
  const std::unique_ptr<StreamClient> streams_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Client>> CreateStreamingClient(const ClientOptions& options) {
  TCGEMM_ASSIGN_OR_RETURN(std::unique_ptr<Client> rest, Client::Create(options));
  TCGEMM_ASSIGN_OR_RETURN(std::unique_ptr<StreamClient> streams, StreamClient::Create(options));
  return std::make_unique<StreamingClient>(std::move(rest), std::move(streams));
}

}  // namespace tcgemm::client
