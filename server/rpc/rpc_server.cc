#include "server/rpc/rpc_server.h"

#include <fcntl.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/server_posix.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <mutex>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "server/rpc/call_context.h"
#include "server/rpc/connection_shares.h"
#include "server/rpc/matmul_service.h"
#include "server/rpc/preface_wait.h"
#include "server/rpc/tcp_listener.h"
#include "server/rpc/unix_listener.h"

namespace tcgemm {
namespace {

// gRPC's own message limit lies this far above ours, so that a message just beyond ours gets our
// words and our count.
constexpr int64_t kMessageSlackBytes = 1 << 20;
// A client that pings every 10 s lives; one ping every 5 s is allowed without data.
constexpr int kMinPingIntervalMs = 5000;
// gRPC buffers a message up to the length in its prefix before it looks at the limit, and messages
// of unary methods (health's Check) before it asks us: a quota bounds what they cost. An honest
// load never comes near it, since payloads need a share of receive_bytes; at four fifths gRPC
// begins to shrink its windows (docs/adr/0007).
constexpr int64_t kQuotaSlackBytes = 64 << 20;
// Open health watches and reflection streams end when this has passed.
constexpr Nanos kShutdownGrace = std::chrono::milliseconds(200);

// At least one, since 0 is gRPC's "at once".
int Milliseconds(Nanos time) {
  return static_cast<int>(
      std::clamp<int64_t>(time.count() / 1'000'000, 1, std::numeric_limits<int>::max() - 1));
}

bool IsUnix(const std::string& address) { return address.rfind(std::string(kUnixPrefix), 0) == 0; }

using Acceptor = grpc::experimental::ExternalConnectionAcceptor;

struct TcpPort {
  std::unique_ptr<TcpListener> listener;
  std::unique_ptr<Acceptor> acceptor;
};

class RpcServerImpl final : public RpcServer {
 public:
  RpcServerImpl(const RpcOptions& options, Engine* engine, const Clock* clock, CallEvents* events)
      : context_(options, engine, clock, events), service_(&context_) {}
  ~RpcServerImpl() override {
    Shutdown();
    context_.live.WaitForNone();
  }

  absl::Status Bind();

  const std::vector<std::string>& addresses() const override { return addresses_; }
  void SetServing(bool serving) override;
  void RefuseNewCalls() override { context_.refusing.store(true); }
  bool WaitIdle(TimePoint deadline) override { return context_.counter.WaitIdle(deadline); }
  void EndHeldCalls() override { context_.held.EndAll(); }
  void Shutdown() override;
  CallTotals totals() const override { return context_.counter.totals(); }
  void SetCallerLimits(const CallerLimits& limits) override { context_.shares.SetLimits(limits); }

 private:
  void Configure(grpc::ServerBuilder& builder);
  absl::Status AddAddresses(grpc::ServerBuilder& builder);
  absl::Status StartRegionSocket();
  absl::Status AcceptConnections();
  void ShareDescriptors();
  // The part that is the same for each listener, by its place in addresses_.
  AcceptHandlers HandlersFor(size_t listener);

  CallContext context_;
  MatmulService service_;
  std::vector<std::string> addresses_;
  std::optional<ConnectionShares> connections_;
  std::unique_ptr<PrefaceWait> prefaces_;
  std::vector<TcpPort> ports_;
  std::vector<std::unique_ptr<UnixListener>> unix_listeners_;
  std::vector<std::string> unix_paths_;  // theirs, absolute
  // Also keeps the gRPC library alive while calls are: they hold references into it.
  grpc::ResourceQuota quota_{"tcgemm"};
  std::unique_ptr<grpc::Server> server_;
};

void RpcServerImpl::Configure(grpc::ServerBuilder& builder) {
  const int64_t limit = context_.options.max_message_bytes + kMessageSlackBytes;
  builder.SetMaxReceiveMessageSize(
      static_cast<int>(std::min<int64_t>(limit, std::numeric_limits<int>::max())));
  builder.SetMaxSendMessageSize(-1);
  const int64_t receive_bytes = std::max(context_.options.receive_bytes, limit);
  quota_.Resize(static_cast<size_t>(receive_bytes + receive_bytes / 4 + kQuotaSlackBytes));
  builder.SetResourceQuota(quota_);
  // 1 GiB of zeros is 1 MB of gzip: compressed messages are refused (UNIMPLEMENTED).
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_GZIP, false);
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_DEFLATE, false);
  // Deadlines are ours (docs/adr/0004): gRPC's would only cancel, and the client would have to
  // guess why.
  builder.AddChannelArgument(GRPC_ARG_ENABLE_DEADLINE_CHECKS, 0);
  // Of TCP; 120 s by itself. Unix sockets have PrefaceWait.
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS,
                             Milliseconds(context_.options.handshake_timeout));
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS,
                             context_.options.max_concurrent_streams);
  if (context_.options.max_connection_age > Nanos(0)) {
    builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_MS,
                               Milliseconds(context_.options.max_connection_age));
  }
  if (context_.options.max_connection_age_grace > Nanos(0)) {
    builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_GRACE_MS,
                               Milliseconds(context_.options.max_connection_age_grace));
  }
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                             kMinPingIntervalMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.RegisterService(&service_);
}

absl::Status RpcServerImpl::AddAddresses(grpc::ServerBuilder& builder) {
  const CertificateStore* const certificates = context_.options.certificates;
  const auto credentials =
      certificates == nullptr ? grpc::InsecureServerCredentials() : certificates->Credentials();
  addresses_ = context_.options.listen;
  for (std::string& address : addresses_) {
    if (IsUnix(address)) {
      const std::string path = address.substr(kUnixPrefix.size());
      TCGEMM_ASSIGN_OR_RETURN(auto listener, UnixListener::Bind(path));
      unix_listeners_.push_back(std::move(listener));
      unix_paths_.push_back(std::filesystem::absolute(path));
      continue;
    }
    TCGEMM_ASSIGN_OR_RETURN(auto listener, TcpListener::Bind(address));
    address = listener->address();
    ports_.push_back({std::move(listener),
                      builder.experimental().AddExternalConnectionAcceptor(
                          grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD,
                          credentials)});
  }
  return absl::OkStatus();
}

absl::Status RpcServerImpl::Bind() {
  // Both act on builders that are made afterwards, and must not act twice.
  static std::once_flag once;
  std::call_once(once, [&] {
    grpc::EnableDefaultHealthCheckService(true);
    if (context_.options.reflection) grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  });
  grpc::ServerBuilder builder;
  Configure(builder);
  TCGEMM_RETURN_IF_ERROR(AddAddresses(builder));
  server_ = builder.BuildAndStart();
  if (server_ == nullptr) return absl::UnavailableError("gRPC could not start a server");
  SetServing(false);
  TCGEMM_RETURN_IF_ERROR(StartRegionSocket());
  return AcceptConnections();
}

absl::Status RpcServerImpl::StartRegionSocket() {
  if (context_.engine->regions().total_bytes() == 0) return absl::OkStatus();
  std::vector<std::string> paths;
  for (const std::string& path : unix_paths_) paths.push_back(RegionSocket::PathBeside(path));
  TCGEMM_ASSIGN_OR_RETURN(context_.region_socket, RegionSocket::Start(paths));
  return absl::OkStatus();
}

void RpcServerImpl::ShareDescriptors() {
  const int open_files = OpenFileLimit();
  // The lowest free descriptor: as many are open, all but a few of them for good.
  const int lowest = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 0);
  if (lowest >= 0) close(lowest);
  const int free = ConnectionDescriptorLimit(open_files) - lowest;
  connections_.emplace(addresses_,
                       ConnectionLimit{.connections = std::max(1, free), .open_files = open_files},
                       context_.clock);
}

AcceptHandlers RpcServerImpl::HandlersFor(size_t listener) {
  const auto on_refused = [this, listener] {
    context_.events->OnConnectionRefused();
    const std::optional<std::string> line = connections_->OnRefused(listener);
    if (line.has_value() && context_.options.log_warning) context_.options.log_warning(*line);
  };
  return {.on_connection = {}, .on_refused = on_refused, .admit = [this, listener](int fd) {
            return connections_->Admit(listener, fd);
          }};
}

absl::Status RpcServerImpl::AcceptConnections() {
  TCGEMM_ASSIGN_OR_RETURN(prefaces_, PrefaceWait::Start(context_.options.handshake_timeout));
  ShareDescriptors();
  size_t next_unix = 0;
  size_t next_tcp = 0;
  for (size_t i = 0; i < addresses_.size(); ++i) {
    AcceptHandlers handlers = HandlersFor(i);
    if (!IsUnix(addresses_[i])) {
      const TcpPort& port = ports_[next_tcp++];
      handlers.on_connection = [acceptor = port.acceptor.get()](int fd) {
        Acceptor::NewConnectionParameters connection;
        connection.fd = fd;
        acceptor->HandleNewConnection(&connection);
      };
      TCGEMM_RETURN_IF_ERROR(port.listener->StartAccepting(std::move(handlers)));
      continue;
    }
    std::string beside;
    if (context_.region_socket != nullptr)
      beside = RegionSocket::PathBeside(unix_paths_[next_unix]);
    const auto serve = [this, beside](int connected, uid_t uid) {
      prefaces_->Add(connected, [this, beside, uid](int fd) {
        context_.uids.Set(fd, {.uid = uid, .region_socket = beside});
        grpc::AddInsecureChannelFromFd(server_.get(), fd);
      });
    };
    TCGEMM_RETURN_IF_ERROR(
        unix_listeners_[next_unix++]->StartAccepting(serve, handlers.on_refused, handlers.admit));
  }
  return absl::OkStatus();
}

void RpcServerImpl::SetServing(bool serving) {
  if (serving) context_.ready.store(true);
  context_.draining.store(!serving && context_.ready.load());
  grpc::HealthCheckServiceInterface* const health = server_->GetHealthCheckService();
  if (health == nullptr) return;
  health->SetServingStatus(serving);
  health->SetServingStatus(kServiceName, serving);
}

void RpcServerImpl::Shutdown() {
  if (server_ == nullptr) return;
  context_.refusing.store(true);
  context_.held.EndAll();
  for (const auto& listener : unix_listeners_) listener->StopAccepting();
  for (const TcpPort& port : ports_) port.listener->StopAccepting();
  if (prefaces_ != nullptr) prefaces_->Stop();
  server_->Shutdown(std::chrono::system_clock::now() + kShutdownGrace);
  server_->Wait();
  server_.reset();
  unix_listeners_.clear();
  ports_.clear();
  if (context_.region_socket != nullptr) context_.region_socket->Stop();
  // Every OnDone has run.
  context_.counter.WaitIdle(kInfiniteFuture);
}

}  // namespace

absl::StatusOr<std::unique_ptr<RpcServer>> RpcServer::Start(const RpcOptions& options,
                                                            Engine* engine, const Clock* clock,
                                                            CallEvents* events) {
  if (options.listen.empty()) return absl::InvalidArgumentError("no address to listen on");
  auto server = std::make_unique<RpcServerImpl>(options, engine, clock, events);
  TCGEMM_RETURN_IF_ERROR(server->Bind());
  return server;
}

}  // namespace tcgemm
