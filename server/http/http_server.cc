#include "server/http/http_server.h"

#include <CivetServer.h>
#include <arpa/inet.h>
#include <netdb.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "server/http/debug_requests.h"
#include "server/http/status_json.h"
#include "server/http/status_page.h"

namespace tcgemm {
namespace {

// A connection that sends no request holds one of the threads for this long, and a drain too: it
// must stay well below the second in which an idle server drains. With so many threads, a probe
// waits 6 s behind 200 connections that say nothing; with them and civetweb's queue of 20, the port
// takes fewer descriptors than are kept back for it (server/rpc/accept_loop.cc).
constexpr const char* kRequestTimeoutMs = "700";
constexpr const char* kThreads = "24";

constexpr const char* kPlainText = "text/plain; charset=utf-8";
constexpr const char* kPrometheusText = "text/plain; version=0.0.4; charset=utf-8";
constexpr const char* kJson = "application/json";
constexpr const char* kHtml = "text/html; charset=utf-8";
constexpr const char* kCss = "text/css; charset=utf-8";
constexpr const char* kJavaScript = "text/javascript; charset=utf-8";

// With every answer: pages run our script and style alone and load nothing from anywhere else, no
// other site may show them or read them, and nothing is kept.
constexpr const char* kHeaders =
    "Cache-Control: no-store\r\n"
    "Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'\r\n"
    "Cross-Origin-Resource-Policy: same-origin\r\n"
    "Referrer-Policy: no-referrer\r\n"
    "X-Content-Type-Options: nosniff\r\n"
    "Connection: close\r\n";

struct Page {
  int status = 200;
  const char* content_type = kPlainText;
  std::string body;
};

// Whether the query, which may be null, asks for JSON.
bool WantsJson(const char* query) {
  if (query == nullptr) return false;
  char format[8];
  return mg_get_var(query, std::strlen(query), "format", format, sizeof(format)) > 0 &&
         std::strcmp(format, "json") == 0;
}

const char* ReasonPhrase(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 421:
      return "Misdirected Request";
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

absl::StatusOr<ListenAddress> ParseHostPort(const std::string& address) {
  const size_t colon = address.rfind(':');
  ListenAddress parsed;
  if (colon == std::string::npos || colon == 0 ||
      !absl::SimpleAtoi(address.substr(colon + 1), &parsed.port) || parsed.port < 0 ||
      parsed.port > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat("metrics address '", address, "' must be HOST:PORT"));
  }
  parsed.host = address.substr(0, colon);
  return parsed;
}

absl::StatusOr<ListenAddress> ParseListenAddress(const std::string& address) {
  TCGEMM_ASSIGN_OR_RETURN(ListenAddress parsed, ParseHostPort(address));
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
                 Metrics* metrics, const NotableCalls* calls)
      : metrics_(metrics),
        calls_(calls),
        host_(listen.host),
        is_loopback_(listen.ip.rfind("127.", 0) == 0),
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
    const mg_request_info* const request = mg_get_request_info(connection);
    const char* const host = mg_get_header(connection, "Host");
    const Page page =
        PageAt(request->local_uri, request->query_string, host == nullptr ? "" : host);
    mg_printf(connection, "HTTP/1.1 %d %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\n%s\r\n",
              page.status, ReasonPhrase(page.status), page.content_type, page.body.size(),
              kHeaders);
    if (with_body) mg_write(connection, page.body.data(), page.body.size());
  }

  Page PageAt(const std::string& path, const char* query, const std::string& host) {
    if (path == "/metrics") {
      return {.content_type = kPrometheusText, .body = metrics_->Serialize()};
    }
    if (path == "/healthz") return {.body = "ok\n"};
    if (path == "/readyz") {
      const std::string readiness(metrics_->readiness());
      return {.status = readiness == "ready" ? 200 : 503, .body = readiness + "\n"};
    }
    if (path == "/") return {.content_type = kHtml, .body = std::string(StatusHtml())};
    if (path == "/status.css") return {.content_type = kCss, .body = std::string(StatusCss())};
    if (path == "/status.js") return {.content_type = kJavaScript, .body = std::string(StatusJs())};
    if (path == "/api/status") return {.content_type = kJson, .body = Status()};
    if (path == "/debug/requests") return DebugRequests(query, host);
    return {.status = 404, .body = "no such page; see /\n"};
  }

  std::string Status() {
    const std::vector<prometheus::MetricFamily> families = metrics_->Collect();
    return StatusJson(families, {.readiness = metrics_->readiness(),
                                 .debug_requests = calls_ != nullptr,
                                 .unix_ms = UnixMilliseconds()});
  }

  Page DebugRequests(const char* query, const std::string& host) {
    // Who lets other machines in knows by what names.
    if (is_loopback_ && !IsOwnHost(host, host_)) {
      return {.status = 421,
              .body =
                  "ask for this page by an IP address, localhost or the host of "
                  "--metrics-listen\n"};
    }
    if (calls_ == nullptr) {
      return {.status = 403,
              .body =
                  "debug pages are off, as always where other machines may reach "
                  "--metrics-listen: --debug-pages=on turns them on\n"};
    }
    if (WantsJson(query)) return {.content_type = kJson, .body = DebugRequestsJson(*calls_)};
    return {.body = DebugRequestsText(*calls_)};
  }

  Metrics* const metrics_;
  const NotableCalls* const calls_;
  const std::string host_;  // as given
  const bool is_loopback_;
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

absl::Status HttpServer::CheckForm(const std::string& address) {
  return ParseHostPort(address).status();
}

absl::Status HttpServer::CheckHost(const std::string& address) {
  return ParseListenAddress(address).status();
}

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const std::string& address,
                                                              Metrics* metrics,
                                                              const NotableCalls* calls) {
  const absl::StatusOr<ListenAddress> listen = ParseListenAddress(address);
  if (!listen.ok()) return listen.status();
  const std::vector<std::string> options = {
      "listening_ports",    absl::StrCat(listen->ip, ":", listen->port),
      "num_threads",        kThreads,
      "enable_keep_alive",  "no",
      "request_timeout_ms", kRequestTimeoutMs};
  try {
    return std::make_unique<HttpServerImpl>(*listen, options, metrics, calls);
  } catch (const CivetException&) {
    // civetweb says neither which address nor why.
    return absl::AlreadyExistsError(absl::StrCat(
        "cannot bind ", address, " for the metrics: busy, not this machine's, or not allowed"));
  }
}

}  // namespace tcgemm
