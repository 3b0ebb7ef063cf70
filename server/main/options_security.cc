#include "server/main/options_security.h"

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/security/loopback.h"

namespace tcgemm {
namespace {

std::string CheckPaths(const ServerOptions& o) {
  const std::pair<const char*, const std::string&> paths[] = {{"--tls-cert", o.tls_cert},
                                                              {"--tls-key", o.tls_key},
                                                              {"--tls-client-ca", o.tls_client_ca},
                                                              {"--token-file", o.token_file},
                                                              {"--access-log", o.access_log}};
  for (const auto& [flag, path] : paths) {
    if (!FitsToml(path)) {
      return absl::StrCat(flag, " '", absl::CEscape(path),
                          "' must not hold quotes, backslashes, '#' or control characters");
    }
  }
  return "";
}

}  // namespace

void AddSecurityFlags(FlagTable& flags, ServerOptions& o) {
  flags.AddChoice("reflection", &o.reflection, {"auto", "on", "off"},
                  "serve gRPC reflection; auto: unless other machines may reach the server");
  flags.AddChoice("debug-pages", &o.debug_pages, {"auto", "on", "off"},
                  "serve /debug/requests; auto: unless other machines may reach --metrics-listen");
  flags.Add("tls-cert", &o.tls_cert,
            "PEM file: the certificate that TCP listeners show, and those that lead to its root; "
            "read again when it changes");
  flags.Add("tls-key", &o.tls_key, "PEM file: its private key, not encrypted");
  flags.Add("tls-client-ca", &o.tls_client_ca,
            "PEM file: clients show a certificate of one of these authorities (mTLS)");
  flags.AddChoice("tls-client-auth", &o.tls_client_auth, {"require", "request"},
                  "with --tls-client-ca: no connection without a certificate, or also without");
  flags.AddFlag("insecure-listen-any", &o.insecure_listen_any,
                "listen beyond loopback although there is no TLS");
  flags.Add("token-file", &o.token_file,
            "lines ID:SHA256 of bearer tokens, one of which every call over TCP must bring; read "
            "again when it changes");
  flags.AddFlag("allow-plaintext-tokens", &o.allow_plaintext_tokens,
                "take tokens over TCP without TLS");
  flags.AddNumber("max-inflight-per-caller", &o.max_inflight_per_caller, 0, 1'000'000,
                  "calls of one caller under way; 0: no limit");
  flags.AddBytes("queue-bytes-per-caller", &o.queue_bytes_per_caller,
                 "operands and results of one caller's calls under way; 0: no limit");
  flags.Add("access-log", &o.access_log,
            "a file, or - for stdout: one JSON line for each call; off: none");
  flags.AddDuration("max-connection-age", &o.max_connection_age, Nanos(0),
                    "a connection as old as that takes no new calls, and its client makes another "
                    "one; 0s: never");
  flags.AddDuration("max-connection-age-grace", &o.max_connection_age_grace, Nanos(0),
                    "how long its calls may go on then; 0s: until they end");
  flags.AddNumber("max-concurrent-streams", &o.max_concurrent_streams, 1, 1'000'000,
                  "calls at once on one connection; more wait in the client");
}

std::vector<std::string> RemoteAddresses(const ServerOptions& options) {
  std::vector<std::string> remote;
  for (const std::string& address : options.listen) {
    if (!IsLocalAddress(address)) remote.push_back(address);
  }
  return remote;
}

bool ServesReflection(const ServerOptions& options) {
  if (options.reflection == "auto") return RemoteAddresses(options).empty();
  return options.reflection == "on";
}

bool ServesDebugPages(const ServerOptions& options) {
  if (options.debug_pages == "auto") return IsLocalAddress(options.metrics_listen);
  return options.debug_pages == "on";
}

std::string CheckSecurity(const ServerOptions& o) {
  if (std::string wrong = CheckPaths(o); !wrong.empty()) return wrong;
  if (o.tls_cert.empty() != o.tls_key.empty()) {
    return absl::StrCat(
        o.tls_cert.empty() ? "--tls-key without --tls-cert" : "--tls-cert without --tls-key",
        ": TLS needs the certificate and its key");
  }
  if (!o.tls_client_ca.empty() && o.tls_cert.empty()) {
    return "--tls-client-ca needs TLS: give --tls-cert and --tls-key";
  }
  const bool has_tcp = std::any_of(o.listen.begin(), o.listen.end(),
                                   [](const std::string& at) { return at.rfind("unix:", 0) != 0; });
  if (!o.token_file.empty() && o.tls_cert.empty() && has_tcp && !o.allow_plaintext_tokens) {
    return "--token-file on TCP needs TLS, or everybody on the way can read the tokens: give "
           "--tls-cert and --tls-key, listen on unix:/path alone, or accept it with "
           "--allow-plaintext-tokens";
  }
  if (o.access_log.empty()) return "--access-log is empty, must be a file, - or off";
  if (!o.tls_cert.empty() || o.insecure_listen_any) return "";
  const std::vector<std::string> remote = RemoteAddresses(o);
  if (remote.empty()) return "";
  return absl::StrCat("--listen ", absl::StrJoin(remote, ","),
                      " can be reached from other machines and there is no TLS: give --tls-cert "
                      "and --tls-key, listen on loopback or unix:/path, or accept it with "
                      "--insecure-listen-any");
}

}  // namespace tcgemm
