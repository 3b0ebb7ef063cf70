// Who calls: from what is known of a connection and the credentials of a call.
#ifndef TCGEMM_SERVER_SECURITY_IDENTITY_H_
#define TCGEMM_SERVER_SECURITY_IDENTITY_H_

#include <sys/types.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "server/engine/caller.h"
#include "server/security/tokens.h"

namespace tcgemm {

struct PeerEvidence {
  std::string_view certificate_name;            // of a verified client's certificate, or empty
  std::vector<std::string_view> authorization;  // the call's headers of that name
  std::optional<uid_t> uid;                     // at the other end of a unix socket
};

// "cert:NAME", else "token:ID", else "uid:N", else "anonymous"; NAME is cut to 256 bytes, and what
// is not printable in it is escaped. `tokens` may be null: then nobody needs credentials, and
// authorization headers mean nothing. UNAUTHENTICATED, always in the same words, for a token that
// is not in the table or no Bearer token, and for a call with neither certificate, token nor uid.
absl::StatusOr<Caller> Identify(const PeerEvidence& evidence, const TokenTable* tokens);

}  // namespace tcgemm

#endif  // TCGEMM_SERVER_SECURITY_IDENTITY_H_
