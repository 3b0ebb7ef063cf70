#include "server/rpc/tcp_listener.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "server/rpc/socket_error.h"

namespace tcgemm {
namespace {

// gRPC's own for a server: how long sent bytes may stay unacknowledged.
constexpr int kUserTimeoutMs = 20'000;
// A port that the kernel chose for one address may be busy at another.
constexpr int kPortTries = 8;

struct Endpoint {
  sockaddr_storage storage{};
  socklen_t length = 0;

  sockaddr* address() { return reinterpret_cast<sockaddr*>(&storage); }
  const sockaddr* address() const { return reinterpret_cast<const sockaddr*>(&storage); }
  bool is_v6() const { return storage.ss_family == AF_INET6; }
  in_port_t* port() {
    return is_v6() ? &reinterpret_cast<sockaddr_in6*>(&storage)->sin6_port
                   : &reinterpret_cast<sockaddr_in*>(&storage)->sin_port;
  }
  // ::ffff:127.0.0.1
  bool is_mapped_v4() const {
    return is_v6() &&
           IN6_IS_ADDR_V4MAPPED(&reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_addr);
  }
  bool is_any() const {
    if (is_v6()) {
      return IN6_IS_ADDR_UNSPECIFIED(&reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_addr);
    }
    return reinterpret_cast<const sockaddr_in*>(&storage)->sin_addr.s_addr == htonl(INADDR_ANY);
  }
};

struct HostPort {
  std::string host;
  std::string port;
};

absl::StatusOr<HostPort> Parse(const std::string& address) {
  const size_t colon = address.rfind(':');
  int port = 0;
  if (colon == std::string::npos || colon == 0 ||
      !absl::SimpleAtoi(address.substr(colon + 1), &port) || port < 0 || port > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat("address '", address, "' must be HOST:PORT or unix:/path"));
  }
  return HostPort{address.substr(0, colon), address.substr(colon + 1)};
}

absl::StatusOr<std::vector<Endpoint>> Resolve(const std::string& address, const HostPort& parts) {
  std::string host = parts.host;
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), parts.port.c_str(), &hints, &found);
  if (error != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("address '", address, "': ", gai_strerror(error)));
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, freeaddrinfo);
  std::vector<Endpoint> endpoints;
  for (; found != nullptr; found = found->ai_next) {
    if (found->ai_addrlen > sizeof(sockaddr_storage)) continue;
    Endpoint& endpoint = endpoints.emplace_back();
    std::memcpy(&endpoint.storage, found->ai_addr, found->ai_addrlen);
    endpoint.length = found->ai_addrlen;
  }
  return endpoints;
}

// A listening socket, or bind's errno negated.
int Listen(const Endpoint& endpoint) {
  const int fd = socket(endpoint.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return -errno;
  const int on = 1;
  // Connections of an earlier server in TIME_WAIT do not make a port busy.
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  // What is accepted inherits these.
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &kUserTimeoutMs, sizeof(kUserTimeoutMs));
  if (endpoint.is_v6()) {
    const int v6_only = endpoint.is_any() || endpoint.is_mapped_v4() ? 0 : 1;
    setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &v6_only, sizeof(v6_only));
  }
  if (bind(fd, endpoint.address(), endpoint.length) == 0 && listen(fd, SOMAXCONN) == 0) return fd;
  const int error = errno;
  close(fd);
  return -error;
}

in_port_t PortOf(int fd) {
  Endpoint endpoint;
  endpoint.length = sizeof(endpoint.storage);
  getsockname(fd, endpoint.address(), &endpoint.length);
  return *endpoint.port();
}

void CloseAll(std::vector<int>& fds) {
  for (const int fd : fds) close(fd);
  fds.clear();
}

// Sockets at all endpoints that this machine has, on one port, or the errno that says why not.
struct Bound {
  std::vector<int> fds;
  int error = 0;
};

Bound ListenAtAll(std::vector<Endpoint> endpoints) {
  Bound bound;
  std::optional<in_port_t> port;
  for (Endpoint& endpoint : endpoints) {
    if (port.has_value()) *endpoint.port() = *port;
    const int fd = Listen(endpoint);
    if (fd >= 0) {
      bound.fds.push_back(fd);
      port = PortOf(fd);
      continue;
    }
    bound.error = -fd;
    // A name may have addresses of a family that this machine does without.
    if (bound.error != EADDRNOTAVAIL && bound.error != EAFNOSUPPORT) {
      CloseAll(bound.fds);
      return bound;
    }
  }
  return bound;
}

// Every address, of both families: one IPv6 socket takes both.
Endpoint AnyOfBothFamilies(Endpoint any) {
  Endpoint both;
  both.storage.ss_family = AF_INET6;
  reinterpret_cast<sockaddr_in6*>(&both.storage)->sin6_addr = in6addr_any;
  both.length = sizeof(sockaddr_in6);
  *both.port() = *any.port();
  return both;
}

}  // namespace

absl::StatusOr<std::unique_ptr<TcpListener>> TcpListener::Bind(const std::string& address) {
  TCGEMM_ASSIGN_OR_RETURN(const HostPort parts, Parse(address));
  TCGEMM_ASSIGN_OR_RETURN(const std::vector<Endpoint> endpoints, Resolve(address, parts));
  Bound bound;
  if (endpoints.size() == 1 && endpoints[0].is_any() && !endpoints[0].is_v6()) {
    bound = ListenAtAll({AnyOfBothFamilies(endpoints[0])});
    if (bound.fds.empty() && bound.error == EADDRINUSE) {
      return SocketError(bound.error, absl::StrCat("cannot bind ", address));
    }
  }
  for (int tries = 0; bound.fds.empty() && tries < kPortTries; ++tries) {
    bound = ListenAtAll(endpoints);
    if (bound.error != EADDRINUSE || parts.port != "0") break;
  }
  if (bound.fds.empty()) return SocketError(bound.error, absl::StrCat("cannot bind ", address));
  std::unique_ptr<TcpListener> listener(new TcpListener);
  listener->fds_ = std::move(bound.fds);
  listener->address_ = absl::StrCat(parts.host, ":", ntohs(PortOf(listener->fds_[0])));
  return listener;
}

absl::Status TcpListener::CheckForm(const std::string& address) { return Parse(address).status(); }

absl::Status TcpListener::CheckHost(const std::string& address) {
  TCGEMM_ASSIGN_OR_RETURN(const HostPort parts, Parse(address));
  return Resolve(address, parts).status();
}

TcpListener::~TcpListener() {
  StopAccepting();
  CloseAll(fds_);
}

absl::Status TcpListener::StartAccepting(AcceptHandlers handlers) {
  return loop_.Start("tcp-accept", fds_, std::move(handlers));
}

}  // namespace tcgemm
