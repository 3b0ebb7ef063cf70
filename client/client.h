// The C++ client: products, server information and health over one gRPC channel.
//
// Threads: a Client may be used from several threads at once. Blocking calls.
#ifndef TCGEMM_CLIENT_CLIENT_H_
#define TCGEMM_CLIENT_CLIENT_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "matrix/epilogue.h"
#include "matrix/matrix.h"
#include "matrix/matrix_view.h"

namespace tcgemm::client {

// How to know the server, and how it knows us. Files are read by Create.
struct ClientSecurity {
  // PEM files. With a CA, TCP connections use TLS and the server must show a certificate that leads
  // to it; without, they are plain. Certificate and key, for servers that want one: both or none.
  std::string tls_ca;
  std::string tls_cert;
  std::string tls_key;
  // The name that the certificate must be for; empty: the host of the address.
  std::string tls_server_name;
  // Goes along with every call, and only over TLS, a unix socket or loopback; empty: none.
  std::string token;
};

struct ClientOptions {
  // "HOST:PORT" or "unix:/path".
  std::string server = "127.0.0.1:50051";
  // Connections that carry one large matrix or product: 1 to 8; 0: as many as help, which is 1 for
  // what is small, and where the server cannot (client/lane_policy.h).
  int lanes = 1;
  ClientSecurity security;
};

struct CallOptions {
  // Required, > 0: of the whole call, retries included.
  Nanos timeout{0};
  // UNAVAILABLE, and any status with a pushback, is retried with backoff within `timeout`; a
  // refused connection for at most two seconds of it (retry.h).
  bool retry = true;
  // Of a product in one message: K may be split (tcgemm.v1.Reduction.FASTEST). Faster where D has
  // few elements and K is long; other bits.
  bool fastest = false;
};

struct MatmulInfo {
  std::string kernel;
  double tflops = 0;  // of the launch
  int batched_with = 0;
  int attempts = 0;
  Nanos round_trip{0};  // of the last attempt, copying D into place included
  int lanes = 1;        // connections that carried it
  // Why it went over one connection although more were to carry it; empty otherwise.
  std::string fallback;
  // The server's stages, in the order of tcgemm.v1.Timings.
  Nanos receive{0}, decode{0}, queue{0}, copy_in{0}, kernel_time{0}, verify{0}, copy_out{0};
};

struct ServerInfo {
  std::string version, commit, device, device_description, backend, cuda;
  bool ready = false;
  bool draining = false;
  int64_t max_message_bytes = 0;
  int64_t max_request_memory_bytes = 0;
  int max_batch = 0;
  int64_t max_queue_delay_us = 0;
  int64_t uptime_seconds = 0;
  std::vector<std::string> kernels;
};

// kUnknown: the server does not know the service, or not yet how it is.
enum class Health { kServing, kNotServing, kUnknown };

class Client {
 public:
  // Does not connect yet. INVALID_ARGUMENT when options.server does not parse, or as
  // MakeCredentials says.
  static absl::StatusOr<std::unique_ptr<Client>> Create(const ClientOptions& options);
  virtual ~Client() = default;

  // D = op(A)·op(B). A and B are bf16 views with any ld; their bytes are copied once into gRPC's
  // memory, elements between the rows included (where those are more than a quarter of the rows,
  // rows are gathered instead). `d` is reshaped to m×n of `output` (its memory is
  // reused). The server's status otherwise; INVALID_ARGUMENT without a timeout or when the message
  // would exceed gRPC's 2 GiB (stream_client.h takes more), before anything is sent; DATA_LOSS when
  // the response does not parse or has another shape.
  virtual absl::StatusOr<MatmulInfo> Matmul(const MatrixView& a, const MatrixView& b, DType output,
                                            Matrix& d, const CallOptions& options) = 0;
  // D = act(alpha·op(A)·op(B) + beta·C + bias); C (where it is read) and the bias travel too, and
  // must fit D. UNIMPLEMENTED, unless the epilogue is the default, from a client that sends none.
  virtual absl::StatusOr<MatmulInfo> MatmulWith(const Epilogue& epilogue, const MatrixView& a,
                                                const MatrixView& b, DType output, Matrix& d,
                                                const CallOptions& options);
  virtual absl::StatusOr<ServerInfo> GetServerInfo(const CallOptions& options) = 0;
  // `service`: "" or "tcgemm.v1.MatmulService".
  virtual absl::StatusOr<Health> CheckHealth(const std::string& service,
                                             const CallOptions& options) = 0;
};

}  // namespace tcgemm::client

#endif  // TCGEMM_CLIENT_CLIENT_H_
