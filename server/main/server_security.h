// What decides who may call and what is written of it, made of the options.
#ifndef TCGEMM_SERVER_MAIN_SERVER_SECURITY_H_
#define TCGEMM_SERVER_MAIN_SERVER_SECURITY_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/engine/engine_events.h"
#include "server/engine/notable_calls.h"
#include "server/main/options.h"
#include "server/rpc/rpc_server.h"
#include "server/security/access_log.h"
#include "server/security/certificate_store.h"
#include "server/security/poller.h"
#include "server/security/tokens.h"

namespace tcgemm {

CallerLimits CallerLimitsOf(const ServerOptions& options);

// Outlives the RpcServer that uses it. Thread-safe.
class ServerSecurity {
 public:
  // Reads the files that the options name and begins to watch them; warns of what is open to
  // everybody. Any error is the operator's to mend (exit code 2): one line, naming flag and file.
  static absl::StatusOr<std::unique_ptr<ServerSecurity>> Create(const ServerOptions& options,
                                                                SecurityEvents* events);

  // The part of the server's options that says who may call.
  void Configure(const ServerOptions& options, RpcOptions& rpc) const;

  // What /debug/requests shows; null: nothing may be shown.
  const NotableCalls* notable_calls() const { return notable_calls_.get(); }

  // Looks at the files now and opens the access log again. What changed, in words for a log line;
  // what was refused has a line of its own.
  std::vector<std::string> Reload();

 private:
  ServerSecurity() = default;

  std::unique_ptr<CertificateStore> certificates_;  // null: TCP listeners have no TLS
  std::unique_ptr<TokenFile> tokens_;               // null: calls need no token
  std::unique_ptr<AccessLog> access_log_;           // null: off
  std::unique_ptr<NotableCalls> notable_calls_;     // null: no debug pages
  std::unique_ptr<Poller> poller_;                  // goes first
};

}  // namespace tcgemm

#endif  // TCGEMM_SERVER_MAIN_SERVER_SECURITY_H_
