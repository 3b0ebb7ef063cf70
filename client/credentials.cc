#include "client/credentials.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tcgemm::client {
namespace {

constexpr size_t kMaxTokenBytes = 4096;

absl::StatusOr<std::string> ReadFile(const char* flag, const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text;
  if (file) text.assign(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  if (file.is_open() && !file.bad() && !text.empty()) return text;
  return absl::InvalidArgumentError(
      absl::StrCat(flag, " ", path, ": ", file.is_open() ? "empty" : std::strerror(errno)));
}

class TokenInterceptor final : public grpc::experimental::Interceptor {
 public:
  explicit TokenInterceptor(const std::string& value) : value_(value) {}

  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(
            grpc::experimental::InterceptionHookPoints::PRE_SEND_INITIAL_METADATA)) {
      methods->GetSendInitialMetadata()->emplace("authorization", value_);
    }
    methods->Proceed();
  }

 private:
  const std::string& value_;  // the factory's, which lives as long as the channel
};

class TokenInterceptorFactory final : public grpc::experimental::ClientInterceptorFactoryInterface {
 public:
  explicit TokenInterceptorFactory(const std::string& token)
      : value_(absl::StrCat("Bearer ", token)) {}
  grpc::experimental::Interceptor* CreateClientInterceptor(
      grpc::experimental::ClientRpcInfo* /*info*/) override {
    return new TokenInterceptor(value_);
  }

 private:
  const std::string value_;
};

}  // namespace

bool StaysOnThisMachine(absl::string_view server) {
  if (absl::StartsWith(server, "unix:")) return true;
  const absl::string_view host = server.substr(0, server.rfind(':'));
  return host == "localhost" || host == "[::1]" ||
         (absl::StartsWith(host, "127.") &&
          host.find_first_not_of("0123456789.") == absl::string_view::npos);
}

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> MakeCredentials(
    const std::string& server, const ClientSecurity& security) {
  if (!security.token.empty() && !IsToken(security.token)) {
    return absl::InvalidArgumentError(
        "the token must be of letters, digits and -._~+/ with = at the end, at most 4096");
  }
  if (security.tls_cert.empty() != security.tls_key.empty()) {
    return absl::InvalidArgumentError("--tls-cert and --tls-key go together: give both");
  }
  if (security.tls_ca.empty()) {
    if (!security.tls_cert.empty() || !security.tls_server_name.empty()) {
      return absl::InvalidArgumentError(
          "--tls-cert, --tls-key and --tls-server-name need --tls-ca: whose servers to trust");
    }
    if (!security.token.empty() && !StaysOnThisMachine(server)) {
      return absl::InvalidArgumentError(
          absl::StrCat("a token is not sent to ", server,
                       " in plain text: give --tls-ca, or use a unix socket or loopback"));
    }
    return grpc::InsecureChannelCredentials();
  }
  grpc::SslCredentialsOptions options;
  TCGEMM_ASSIGN_OR_RETURN(options.pem_root_certs, ReadFile("--tls-ca", security.tls_ca));
  if (!security.tls_cert.empty()) {
    TCGEMM_ASSIGN_OR_RETURN(options.pem_cert_chain, ReadFile("--tls-cert", security.tls_cert));
    TCGEMM_ASSIGN_OR_RETURN(options.pem_private_key, ReadFile("--tls-key", security.tls_key));
  }
  if (absl::StartsWith(server, "unix:")) return grpc::InsecureChannelCredentials();
  return grpc::SslCredentials(options);
}

bool IsToken(absl::string_view text) {
  const absl::string_view body = text.substr(0, text.find_last_not_of('=') + 1);
  if (body.empty() || text.size() > kMaxTokenBytes) return false;
  for (const char c : body) {
    if (!absl::ascii_isalnum(static_cast<unsigned char>(c)) && !absl::StrContains("-._~+/", c)) {
      return false;
    }
  }
  return true;
}

absl::StatusOr<std::string> ReadToken(const std::string& path) {
  TCGEMM_ASSIGN_OR_RETURN(const std::string text, ReadFile("--token-file", path));
  const absl::string_view view = text;
  const std::string token(absl::StripAsciiWhitespace(view.substr(0, view.find('\n'))));
  if (IsToken(token)) return token;
  return absl::InvalidArgumentError(
      absl::StrCat("--token-file ", path,
                   ": its first line must be a token: letters, digits and -._~+/ with = at the "
                   "end, at most 4096"));
}

std::vector<std::unique_ptr<grpc::experimental::ClientInterceptorFactoryInterface>> SendToken(
    const std::string& token) {
  std::vector<std::unique_ptr<grpc::experimental::ClientInterceptorFactoryInterface>> factories;
  factories.push_back(std::make_unique<TokenInterceptorFactory>(token));
  return factories;
}

}  // namespace tcgemm::client
