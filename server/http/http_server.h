// The HTTP port for operators: a status page, metrics, health, and what went wrong lately.
#ifndef TCGEMM_SERVER_HTTP_HTTP_SERVER_H_
#define TCGEMM_SERVER_HTTP_HTTP_SERVER_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/engine/notable_calls.h"
#include "server/http/metrics.h"

namespace tcgemm {

class HttpServer {
 public:
  // Serves GET and HEAD on "HOST:PORT" (port 0: any; IPv4, as Debian's civetweb has no IPv6).
  // ALREADY_EXISTS when it cannot be bound, INVALID_ARGUMENT when the address does not parse or
  // the name has no IPv4 address. `metrics` and `calls` must outlive the server.
  //   /                the status page (with /status.css and /status.js)
  //   /api/status      what it shows, as JSON
  //   /debug/requests  `calls`, as text or with ?format=json as JSON; 403 without them
  //   /metrics         Prometheus text
  //   /healthz         200 while the process lives
  //   /readyz          200 while it wants traffic, else 503; Metrics::readiness
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(const std::string& address,
                                                           Metrics* metrics,
                                                           const NotableCalls* calls = nullptr);
  // The two ways in which Start finds the address invalid: its form, and (which looks the name up)
  // a host without an IPv4 address.
  static absl::Status CheckForm(const std::string& address);
  static absl::Status CheckHost(const std::string& address);
  virtual ~HttpServer() = default;
  // With the real port.
  virtual const std::string& address() const = 0;
};

}  // namespace tcgemm

#endif  // TCGEMM_SERVER_HTTP_HTTP_SERVER_H_
