#include "server/main/addresses.h"

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "server/http/http_server.h"
#include "server/main/options_security.h"
#include "server/rpc/tcp_listener.h"
#include "server/rpc/unix_listener.h"

namespace tcgemm {
namespace {

constexpr char kListen[] = "--listen";
constexpr char kMetricsListen[] = "--metrics-listen";

bool IsUnix(const std::string& address) { return address.rfind(std::string(kUnixPrefix), 0) == 0; }

absl::Status CheckForm(const std::string& flag, const std::string& address) {
  if (!FitsToml(address)) {
    return absl::InvalidArgumentError(
        absl::StrCat("address '", absl::CEscape(address),
                     "' must not hold quotes, backslashes, '#' or control characters"));
  }
  if (flag == kListen && IsUnix(address)) {
    return UnixListener::CheckPath(address.substr(kUnixPrefix.size()));
  }
  return flag == kListen ? TcpListener::CheckForm(address) : HttpServer::CheckForm(address);
}

absl::Status WithFlag(const std::string& flag, const absl::Status& status) {
  return status.ok()
             ? status
             : absl::InvalidArgumentError(absl::StrCat(flag, ": ", std::string(status.message())));
}

}  // namespace

std::string CheckAddresses(const ServerOptions& options) {
  for (const std::string& address : options.listen) {
    const absl::Status good = WithFlag(kListen, CheckForm(kListen, address));
    if (!good.ok()) return std::string(good.message());
  }
  return std::string(
      WithFlag(kMetricsListen, CheckForm(kMetricsListen, options.metrics_listen)).message());
}

absl::Status ResolveAddresses(const ServerOptions& options) {
  for (const std::string& address : options.listen) {
    if (IsUnix(address)) continue;
    const absl::Status found = WithFlag(kListen, TcpListener::CheckHost(address));
    if (!found.ok()) return found;
  }
  return WithFlag(kMetricsListen, HttpServer::CheckHost(options.metrics_listen));
}

}  // namespace tcgemm
