#include "server/http/http_server.h"

#include <CivetServer.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace tcgemm {
namespace {

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

class HttpServerImpl final : public HttpServer, private CivetHandler {
 public:
  HttpServerImpl(const std::string& host, const std::vector<std::string>& options, Metrics* metrics)
      : metrics_(metrics), civet_(options) {
    civet_.addHandler("/", this);
    address_ = absl::StrCat(host, ":", civet_.getListeningPorts().at(0));
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
  std::string address_;
  CivetServer civet_;
};

HttpServerImpl::~HttpServerImpl() {
  // civetweb's accept loop looks at its stop flag when its poll returns: every 2 s, or when
  // somebody connects. A drain must not wait for that.
  std::atomic<bool> closed{false};
  std::thread waker([&] {
    char error[64];
    const size_t colon = address_.rfind(':');
    while (!closed.load()) {
      mg_connection* const wake = mg_connect_client(
          "127.0.0.1", std::atoi(address_.c_str() + colon + 1), 0, error, sizeof(error));
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
  const size_t colon = address.rfind(':');
  int port = 0;
  if (colon == std::string::npos || colon == 0 ||
      !absl::SimpleAtoi(address.substr(colon + 1), &port) || port < 0 || port > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat("metrics address '", address, "' must be HOST:PORT"));
  }
  const std::string host = address.substr(0, colon);
  const std::string listen = host == "localhost" ? absl::StrCat("127.0.0.1:", port) : address;
  const std::vector<std::string> options = {
      "listening_ports",   listen, "num_threads",        "4",
      "enable_keep_alive", "no",   "request_timeout_ms", "5000"};
  try {
    return std::make_unique<HttpServerImpl>(host, options, metrics);
  } catch (const CivetException&) {
    // civetweb says neither which address nor why.
    return absl::AlreadyExistsError(
        absl::StrCat("cannot bind ", address, " for the metrics: busy, or not this machine's"));
  }
}

}  // namespace tcgemm
