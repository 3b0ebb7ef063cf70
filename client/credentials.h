// How a connection knows its server, and how the server knows who calls.
#ifndef TCGEMM_CLIENT_CREDENTIALS_H_
#define TCGEMM_CLIENT_CREDENTIALS_H_

#include <grpcpp/security/credentials.h>
#include <grpcpp/support/client_interceptor.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/client.h"

namespace tcgemm::client {

// Only this machine can read what is sent to `server` ("HOST:PORT" or "unix:/path"): a unix socket,
// localhost or a loopback address as such. Resolves nothing.
bool StaysOnThisMachine(absl::string_view server);

// For a channel to `server`: TLS when security.tls_ca names a file, except on a unix socket.
// INVALID_ARGUMENT, naming the flag and the file, for a file that cannot be read, a certificate
// without its key or the other way round, either without a CA, and a token that would travel in
// plain text.
absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> MakeCredentials(
    const std::string& server, const ClientSecurity& security);

// The first line of a file, for ClientSecurity::token. INVALID_ARGUMENT, naming the file and never
// what it holds, when it cannot be read or the line is no token (RFC 6750: letters, digits and
// -._~+/ with = at the end).
absl::StatusOr<std::string> ReadToken(const std::string& path);
bool IsToken(absl::string_view text);

// Adds "authorization: Bearer TOKEN" to every call of a channel.
std::vector<std::unique_ptr<grpc::experimental::ClientInterceptorFactoryInterface>> SendToken(
    const std::string& token);

}  // namespace tcgemm::client

#endif  // TCGEMM_CLIENT_CREDENTIALS_H_
