#include "server/security/identity.h"

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace tcgemm {
namespace {

constexpr std::string_view kScheme = "bearer ";
constexpr size_t kMaxNameBytes = 256;

absl::Status Refused() {
  return absl::UnauthenticatedError("no valid credentials: this server wants a token");
}

// The token of a header; empty when it holds none.
std::string_view TokenOf(std::string_view header) {
  const absl::string_view scheme(header.data(), std::min(header.size(), kScheme.size()));
  if (!absl::EqualsIgnoreCase(scheme, absl::string_view(kScheme.data(), kScheme.size()))) return "";
  return header.substr(kScheme.size());
}

}  // namespace

absl::StatusOr<Caller> Identify(const PeerEvidence& evidence, const TokenTable* tokens) {
  std::optional<std::string> id;
  if (tokens != nullptr && !evidence.authorization.empty()) {
    if (evidence.authorization.size() > 1) return Refused();
    id = tokens->Find(TokenOf(evidence.authorization.front()));
    if (!id.has_value()) return Refused();
  }
  if (!evidence.certificate_name.empty()) {
    const std::string name(evidence.certificate_name.substr(0, kMaxNameBytes));
    return Caller{.identity = absl::StrCat("cert:", absl::CEscape(name))};
  }
  if (id.has_value()) return Caller{.identity = absl::StrCat("token:", *id)};
  if (evidence.uid.has_value()) return Caller{.identity = absl::StrCat("uid:", *evidence.uid)};
  if (tokens != nullptr) return Refused();
  return Caller{};
}

}  // namespace tcgemm
