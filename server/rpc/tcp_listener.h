// TCP sockets that we bind and accept ourselves and hand to gRPC connection by connection
// (accept_loop.h says why).
#ifndef TCGEMM_SERVER_RPC_TCP_LISTENER_H_
#define TCGEMM_SERVER_RPC_TCP_LISTENER_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/rpc/accept_loop.h"

namespace tcgemm {

class TcpListener {
 public:
  // Binds "HOST:PORT" (port 0: any): every address that the host's name has, on one port. 0.0.0.0
  // and [::] both mean every address of both families, as with gRPC. Accepts only after
  // StartAccepting. ALREADY_EXISTS when the port is busy (no SO_REUSEPORT: a second server fails
  // and takes no share), INVALID_ARGUMENT when the address does not parse or resolve; otherwise
  // what bind(2) says, naming the address.
  static absl::StatusOr<std::unique_ptr<TcpListener>> Bind(const std::string& address);
  // The two ways in which Bind finds the address invalid: its form, and (which looks the name up) a
  // host without an address.
  static absl::Status CheckForm(const std::string& address);
  static absl::Status CheckHost(const std::string& address);
  ~TcpListener();
  TcpListener(const TcpListener&) = delete;
  TcpListener& operator=(const TcpListener&) = delete;

  // HOST as given, and the real port.
  const std::string& address() const { return address_; }

  // Connections come with TCP_NODELAY. Once.
  absl::Status StartAccepting(AcceptHandlers handlers);
  // Idempotent; no handler runs after it returned.
  void StopAccepting() { loop_.Stop(); }

 private:
  TcpListener() = default;

  std::string address_;
  std::vector<int> fds_;
  AcceptLoop loop_;
};

}  // namespace tcgemm

#endif  // TCGEMM_SERVER_RPC_TCP_LISTENER_H_
