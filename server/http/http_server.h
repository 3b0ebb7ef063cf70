// The HTTP port for operators: /metrics, /healthz, /readyz and an index.
#ifndef TCGEMM_SERVER_HTTP_HTTP_SERVER_H_
#define TCGEMM_SERVER_HTTP_HTTP_SERVER_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/http/metrics.h"

namespace tcgemm {

class HttpServer {
 public:
  // Serves GET and HEAD on "HOST:PORT" (port 0: any; IPv4, as Debian's civetweb has no IPv6).
  // ALREADY_EXISTS when it cannot be bound, INVALID_ARGUMENT when the address does not parse or
  // the name has no IPv4 address. `metrics` must outlive the server.
  //   /metrics  Prometheus text
  //   /healthz  200 while the process lives
  //   /readyz   200 while it wants traffic, else 503 with the reason
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(const std::string& address,
                                                           Metrics* metrics);
  virtual ~HttpServer() = default;
  // With the real port.
  virtual const std::string& address() const = 0;
};

}  // namespace tcgemm

#endif  // TCGEMM_SERVER_HTTP_HTTP_SERVER_H_
