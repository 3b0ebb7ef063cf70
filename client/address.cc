#include "client/address.h"

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace tcgemm::client {
namespace {

// sockaddr_un::sun_path holds 108 bytes, the last one zero.
constexpr size_t kMaxUnixPath = 107;

absl::Status Malformed(absl::string_view server, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("server address '", server, "': ", why,
                                                 "; write HOST:PORT, [IPV6]:PORT or unix:/path"));
}

bool IsHostCharacter(char c) { return absl::ascii_isalnum(c) || c == '.' || c == '-' || c == '_'; }
bool IsIpv6Character(char c) { return absl::ascii_isxdigit(c) || c == ':' || c == '.'; }

template <typename Predicate>
bool AllOf(absl::string_view text, Predicate predicate) {
  for (char c : text) {
    if (!predicate(c)) return false;
  }
  return !text.empty();
}

}  // namespace

absl::StatusOr<std::string> GrpcTarget(absl::string_view server) {
  if (absl::StartsWith(server, "unix:")) {
    const absl::string_view path = server.substr(5);
    if (path.empty()) return Malformed(server, "the path is missing");
    if (path.size() > kMaxUnixPath) {
      return Malformed(server, absl::StrCat("the path has ", path.size(),
                                            " bytes, a socket's at most ", kMaxUnixPath));
    }
    return std::string(server);
  }
  const size_t colon = server.rfind(':');
  if (colon == absl::string_view::npos) return Malformed(server, "the port is missing");
  absl::string_view host = server.substr(0, colon);
  int port = 0;
  const absl::string_view digits = server.substr(colon + 1);
  if (!AllOf(digits, absl::ascii_isdigit) || !absl::SimpleAtoi(digits, &port) || port < 1 ||
      port > 65535) {
    return Malformed(server, "the port must be 1 to 65535");
  }
  const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  const bool valid = bracketed ? AllOf(host.substr(1, host.size() - 2), IsIpv6Character)
                               : AllOf(host, IsHostCharacter);
  if (!valid) return Malformed(server, "the host does not parse");
  // With the scheme, so that gRPC does not take "localhost:" for one.
  return absl::StrCat("dns:///", server);
}

}  // namespace tcgemm::client
