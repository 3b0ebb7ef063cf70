#include "server/http/http_server.h"

#include <CivetServer.h>
#include <arpa/inet.h>
#include <netdb.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace tcgemm {
namespace {

// A connection that sends no request holds one of few threads for this long, and a drain too: it
// must stay well below the second in which an idle server drains.
constexpr const char* kRequestTimeoutMs = "700";
constexpr const char* kThreads = "8";

constexpr const char* kPlainText = "text/plain; charset=utf-8";
constexpr const char* kPrometheusText = "text/plain; version=0.0.4; charset=utf-8";
constexpr const char* kIndex =
    "tcgemm-server\n\n"
    "/metrics  Prometheus metrics\n"
    "/healthz  200 while the process lives\n"
    "/readyz   200 while it wants traffic\n";

struct Page {
  int status = 200;
  const char* content_type = kPlainText;
  std::string body;
};

const char* ReasonPhrase(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 404:
      return "Not Found";
    default:
      return "Service Unavailable";
  }
}

// HOST:PORT, and where that is.
struct ListenAddress {
  std::string host;  // as given
  std::string ip;
  int port = 0;
};

// The IPv4 address of a name or a literal; empty when it has none.
std::string ResolveIpv4(const std::string& host) {
  addrinfo hints{};
  hints.ai_family = AF_INET;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), nullptr, &hints, &found) != 0) return "";
  char text[INET_ADDRSTRLEN] = "";
  inet_ntop(AF_INET, &reinterpret_cast<sockaddr_in*>(found->ai_addr)->sin_addr, text, sizeof(text));
  freeaddrinfo(found);
  return text;
}

absl::StatusOr<ListenAddress> ParseListenAddress(const std::string& address) {
  const size_t colon = address.rfind(':');
  ListenAddress parsed;
  if (colon == std::string::npos || colon == 0 ||
      !absl::SimpleAtoi(address.substr(colon + 1), &parsed.port) || parsed.port < 0 ||
      parsed.port > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat("metrics address '", address, "' must be HOST:PORT"));
  }
  parsed.host = address.substr(0, colon);
  parsed.ip = ResolveIpv4(parsed.host);
  if (parsed.ip.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("metrics address '", address, "': the host has no IPv4 address"));
  }
  return parsed;
}

class HttpServerImpl final : public HttpServer, private CivetHandler {
 public:
  HttpServerImpl(const ListenAddress& listen, const std::vector<std::string>& options,
                 Metrics* metrics)
      : metrics_(metrics),
        // A server on every address is woken on this one.
        wake_ip_(listen.ip == "0.0.0.0" ? "127.0.0.1" : listen.ip),
        civet_(options) {
    port_ = civet_.getListeningPorts().at(0);
    address_ = absl::StrCat(listen.host, ":", port_);
    civet_.addHandler("/", this);
  }
  ~HttpServerImpl() override;

  const std::string& address() const override { return address_; }

 private:
  bool handleGet(CivetServer*, mg_connection* connection) override {
    Answer(connection, /*with_body=*/true);
    return true;
  }
  bool handleHead(CivetServer*, mg_connection* connection) override {
    Answer(connection, /*with_body=*/false);
    return true;
  }

  void Answer(mg_connection* connection, bool with_body) {
    const Page page = PageAt(mg_get_request_info(connection)->local_uri);
    mg_printf(connection,
              "HTTP/1.1 %d %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\n"
              "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n"
              "Connection: close\r\n\r\n",
              page.status, ReasonPhrase(page.status), page.content_type, page.body.size());
    if (with_body) mg_write(connection, page.body.data(), page.body.size());
  }

  Page PageAt(const std::string& path) {
    if (path == "/metrics") {
      return {.content_type = kPrometheusText, .body = metrics_->Serialize()};
    }
    if (path == "/healthz") return {.body = "ok\n"};
    if (path == "/readyz") {
      if (metrics_->ready()) return {.body = "ready\n"};
      return {.status = 503, .body = metrics_->draining() ? "draining\n" : "not ready\n"};
    }
    if (path == "/") return {.body = kIndex};
    return {.status = 404, .body = "no such page; see /\n"};
  }

  Metrics* const metrics_;
  const std::string wake_ip_;
  int port_ = 0;
  std::string address_;
  CivetServer civet_;
};

HttpServerImpl::~HttpServerImpl() {
  // civetweb's accept loop looks at its stop flag when its poll returns: every 2 s, or when
  // somebody connects. A drain must not wait for that.
  std::atomic<bool> closed{false};
  std::thread waker([&] {
    char error[64];
    while (!closed.load()) {
      mg_connection* const wake =
          mg_connect_client(wake_ip_.c_str(), port_, 0, error, sizeof(error));
      if (wake != nullptr) mg_close_connection(wake);
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  });
  civet_.close();
  closed.store(true);
  waker.join();
}

}  // namespace

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const std::string& address,
                                                              Metrics* metrics) {
  const absl::StatusOr<ListenAddress> listen = ParseListenAddress(address);
  if (!listen.ok()) return listen.status();
  const std::vector<std::string> options = {
      "listening_ports",    absl::StrCat(listen->ip, ":", listen->port),
      "num_threads",        kThreads,
      "enable_keep_alive",  "no",
      "request_timeout_ms", kRequestTimeoutMs};
  try {
    return std::make_unique<HttpServerImpl>(*listen, options, metrics);
  } catch (const CivetException&) {
    // civetweb says neither which address nor why.
    return absl::AlreadyExistsError(absl::StrCat(
        "cannot bind ", address, " for the metrics: busy, not this machine's, or not allowed"));
  }
}

}  // namespace tcgemm
