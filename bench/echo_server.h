// The limit that the road is measured against: a gRPC server on the same sockets with the same raw
// byte-buffer path, which answers every message with the same bytes of its own, without a look at
// what it got.
#ifndef TCGEMM_BENCH_ECHO_SERVER_H_
#define TCGEMM_BENCH_ECHO_SERVER_H_

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace tcgemm {

class EchoServer {
 public:
  // `address` as in RpcOptions::listen; answers hold `response_bytes`.
  static absl::StatusOr<std::unique_ptr<EchoServer>> Start(const std::string& address,
                                                           size_t response_bytes);
  virtual ~EchoServer() = default;
  virtual const std::string& address() const = 0;
};

}  // namespace tcgemm

#endif  // TCGEMM_BENCH_ECHO_SERVER_H_
