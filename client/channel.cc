#include "client/channel.h"

#include <grpcpp/create_channel.h>

#include "base/status_macros.h"
#include "client/address.h"
#include "client/credentials.h"

namespace tcgemm::client {
namespace {

grpc::ChannelArguments MakeArguments() {
  constexpr int kKeepaliveMs = 30'000;
  constexpr int kKeepaliveTimeoutMs = 10'000;
  constexpr int kFirstReconnectMs = 100;
  constexpr int kMaxReconnectMs = 1'000;
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetMaxSendMessageSize(-1);
  arguments.SetCompressionAlgorithm(GRPC_COMPRESS_NONE);
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);  // retry.h says why
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
  // Also the socket's TCP_USER_TIMEOUT, which ends a write that a dead peer never takes.
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, kFirstReconnectMs);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kMaxReconnectMs);
  // One connection per Client: several Clients are how one process uses several sockets.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  // Matrices do not go through a web proxy that the environment happens to name.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1);
  return arguments;
}

}  // namespace

absl::StatusOr<std::shared_ptr<grpc::Channel>> MakeChannel(const std::string& server) {
  return MakeChannel(ClientOptions{.server = server});
}

absl::StatusOr<std::shared_ptr<grpc::Channel>> MakeChannel(const ClientOptions& options) {
  TCGEMM_ASSIGN_OR_RETURN(const std::string target, GrpcTarget(options.server));
  TCGEMM_ASSIGN_OR_RETURN(const auto credentials,
                          MakeCredentials(options.server, options.security));
  grpc::ChannelArguments arguments = MakeArguments();
  if (!options.security.tls_server_name.empty()) {
    arguments.SetSslTargetNameOverride(options.security.tls_server_name);
  }
  if (options.security.token.empty()) {
    return grpc::CreateCustomChannel(target, credentials, arguments);
  }
  return grpc::experimental::CreateCustomChannelWithInterceptors(target, credentials, arguments,
                                                                 SendToken(options.security.token));
}

}  // namespace tcgemm::client
