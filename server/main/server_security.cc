#include "server/main/server_security.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "server/main/logging.h"
#include "server/main/options_security.h"

namespace tcgemm {
namespace {

constexpr Nanos kPollInterval = std::chrono::seconds(1);

void WarnOfOpenListeners(const ServerOptions& options) {
  const std::vector<std::string> remote = RemoteAddresses(options);
  if (!options.tls_cert.empty() || remote.empty()) return;
  Log(LogLevel::kWarning,
      absl::StrCat("INSECURE: ", absl::StrJoin(remote, ","),
                   " can be reached from other machines without TLS (--insecure-listen-any): "
                   "whoever reaches it may call, and read what others send"));
}

void LogChange(bool refused, const std::string& line) {
  Log(refused ? LogLevel::kError : LogLevel::kInfo, line);
}

}  // namespace

CallerLimits CallerLimitsOf(const ServerOptions& options) {
  return {.max_inflight = options.max_inflight_per_caller,
          .queue_bytes = options.queue_bytes_per_caller};
}

absl::StatusOr<std::unique_ptr<ServerSecurity>> ServerSecurity::Create(const ServerOptions& options,
                                                                       SecurityEvents* events) {
  std::unique_ptr<ServerSecurity> security(new ServerSecurity());
  WarnOfOpenListeners(options);
  if (!options.tls_cert.empty()) {
    TCGEMM_ASSIGN_OR_RETURN(
        security->certificates_,
        CertificateStore::Create({.files = {.cert = options.tls_cert,
                                            .key = options.tls_key,
                                            .client_ca = options.tls_client_ca},
                                  .require_client = options.tls_client_auth == "require",
                                  .events = events,
                                  .log = LogChange}));
  }
  if (!options.token_file.empty()) {
    TCGEMM_ASSIGN_OR_RETURN(security->tokens_, TokenFile::Open(options.token_file, LogChange));
  }
  if (options.access_log != "off") {
    TCGEMM_ASSIGN_OR_RETURN(security->access_log_, AccessLog::Open(options.access_log));
  }
  if (ServesDebugPages(options)) {
    security->notable_calls_ = std::make_unique<NotableCalls>(options.slow_request);
  }
  if (security->certificates_ != nullptr || security->tokens_ != nullptr) {
    security->poller_ =
        std::make_unique<Poller>("file-watch", kPollInterval, [it = security.get()] {
          if (it->certificates_ != nullptr) it->certificates_->Poll();
          if (it->tokens_ != nullptr) it->tokens_->Reload().IgnoreError();  // it logs
        });
  }
  return security;
}

void ServerSecurity::Configure(const ServerOptions& options, RpcOptions& rpc) const {
  rpc.reflection = ServesReflection(options);
  rpc.certificates = certificates_.get();
  rpc.tokens = tokens_.get();
  rpc.access_log = access_log_.get();
  rpc.notable_calls = notable_calls_.get();
  rpc.caller_limits = CallerLimitsOf(options);
  rpc.max_connection_age = options.max_connection_age;
  rpc.max_connection_age_grace = options.max_connection_age_grace;
  rpc.max_concurrent_streams = options.max_concurrent_streams;
}

std::vector<std::string> ServerSecurity::Reload() {
  std::vector<std::string> changed;
  if (certificates_ != nullptr) {
    const absl::StatusOr<bool> renewed = certificates_->Reload();
    if (renewed.ok() && *renewed) changed.push_back("certificates");
  }
  if (tokens_ != nullptr) {
    const absl::StatusOr<bool> read = tokens_->Reload();
    if (read.ok() && *read) changed.push_back("tokens");
  }
  if (access_log_ != nullptr) {
    if (const absl::Status opened = access_log_->Reopen(); !opened.ok()) {
      Log(LogLevel::kError,
          absl::StrCat("the access log goes on in the old file: ", std::string(opened.message())));
    }
  }
  return changed;
}

}  // namespace tcgemm
