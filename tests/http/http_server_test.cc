#include "server/http/http_server.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "server/http/status_page.h"

namespace tcgemm {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

class HttpServerTest : public ::testing::Test {
 protected:
  HttpServerTest() : server_(HttpServer::Start("127.0.0.1:0", &metrics_, &calls_).value()) {}

  int Connect() {
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const std::string& text = server_->address();
    address.sin_port =
        htons(static_cast<uint16_t>(std::atoi(text.substr(text.rfind(':') + 1).c_str())));
    EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    return fd;
  }

  // The whole answer to one request.
  std::string Ask(const std::string& method, const std::string& path,
                  const std::string& host = "localhost:1") {
    const int fd = Connect();
    const std::string request = method + " " + path + " HTTP/1.1\r\nHost: " + host + "\r\n\r\n";
    EXPECT_EQ(write(fd, request.data(), request.size()), static_cast<ssize_t>(request.size()));
    std::string answer;
    char buffer[4096];
    for (ssize_t got = read(fd, buffer, sizeof(buffer)); got > 0;
         got = read(fd, buffer, sizeof(buffer))) {
      answer.append(buffer, static_cast<size_t>(got));
    }
    close(fd);
    return answer;
  }

  static std::string BodyOf(const std::string& answer) {
    return answer.substr(answer.find("\r\n\r\n") + 4);
  }

  Metrics metrics_{{.version = "1", .device = "cpu", .methods = {"Matmul"}}};
  NotableCalls calls_{std::chrono::seconds(1)};
  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpServerTest, Metrics) {
  const std::string answer = Ask("GET", "/metrics");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(answer, HasSubstr("Content-Type: text/plain; version=0.0.4"));
  EXPECT_THAT(answer, HasSubstr("\ntcgemm_ready 0\n"));
}

TEST_F(HttpServerTest, ReadinessFollowsTheServer) {
  EXPECT_THAT(Ask("GET", "/healthz"), StartsWith("HTTP/1.1 200 "));
  EXPECT_THAT(Ask("GET", "/readyz"), StartsWith("HTTP/1.1 503 "));
  EXPECT_THAT(Ask("GET", "/readyz"), EndsWith("\r\n\r\ndevice lost\n"));
  metrics_.OnDeviceHealth(true);
  EXPECT_THAT(Ask("GET", "/readyz"), EndsWith("\r\n\r\nstarting\n"));
  metrics_.SetReady(true);
  EXPECT_THAT(Ask("GET", "/readyz"), StartsWith("HTTP/1.1 200 "));
  metrics_.SetReady(false);
  metrics_.SetDraining(true);
  EXPECT_THAT(Ask("GET", "/readyz"), EndsWith("\r\n\r\ndraining\n"));
}

TEST_F(HttpServerTest, HeadHasNoBody) {
  const std::string answer = Ask("HEAD", "/healthz");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 "));
  EXPECT_THAT(answer, HasSubstr("Content-Length: 3\r\n"));
  EXPECT_THAT(answer, EndsWith("\r\n\r\n"));
}

const char* const kPages[] = {"/",           "/status.css",     "/status.js",
                              "/api/status", "/debug/requests", "/metrics",
                              "/healthz",    "/readyz"};

TEST_F(HttpServerTest, EveryPageOfHeadersAlone) {
  metrics_.SetReady(true);
  for (const char* page : kPages) {
    const std::string answer = Ask("HEAD", page);
    EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 OK\r\n")) << page;
    EXPECT_THAT(answer, EndsWith("\r\n\r\n")) << page;
    EXPECT_THAT(answer, Not(HasSubstr("Content-Length: 0\r\n"))) << page;
    EXPECT_THAT(Ask("POST", page), StartsWith("HTTP/1.1 4")) << page;
  }
}

TEST_F(HttpServerTest, EveryAnswerIsClosedToOtherSitesAndKeptByNobody) {
  std::vector<std::string> paths(std::begin(kPages), std::end(kPages));
  paths.emplace_back("/nonsense");
  for (const std::string& path : paths) {
    const std::string answer = Ask("GET", path);
    for (const char* header :
         {"Cache-Control: no-store", "X-Content-Type-Options: nosniff",
          "Referrer-Policy: no-referrer", "Cross-Origin-Resource-Policy: same-origin"}) {
      EXPECT_THAT(answer, HasSubstr(std::string("\r\n") + header + "\r\n")) << path;
    }
    EXPECT_THAT(answer, HasSubstr("\r\nContent-Security-Policy: default-src 'none'; ")) << path;
    EXPECT_THAT(answer, HasSubstr("frame-ancestors 'none'\r\n")) << path;
    EXPECT_THAT(answer, Not(HasSubstr("unsafe"))) << path;
  }
}

TEST_F(HttpServerTest, TheStatusPageHasItsTypes) {
  EXPECT_THAT(Ask("GET", "/"), HasSubstr("Content-Type: text/html; charset=utf-8\r\n"));
  EXPECT_THAT(Ask("GET", "/"), EndsWith("\r\n\r\n" + std::string(StatusHtml())));
  EXPECT_THAT(Ask("GET", "/status.css"), HasSubstr("Content-Type: text/css; charset=utf-8\r\n"));
  EXPECT_THAT(Ask("GET", "/status.js"), HasSubstr("Content-Type: text/javascript; "));
  EXPECT_THAT(Ask("GET", "/api/status"), HasSubstr("Content-Type: application/json\r\n"));
}

TEST_F(HttpServerTest, TheStatusIsThatOfTheMetrics) {
  metrics_.OnDeviceHealth(true);
  metrics_.SetReady(true);
  metrics_.OnCallStarted("Matmul");
  const auto status = nlohmann::json::parse(BodyOf(Ask("GET", "/api/status")));
  EXPECT_EQ(status["readiness"], "ready");
  EXPECT_EQ(status["inflight"], 1);
  EXPECT_EQ(status["debug_requests"], true);
  EXPECT_GT(status["uptime_seconds"], 0);
  EXPECT_LT(status["uptime_seconds"], 3600);
}

TEST_F(HttpServerTest, DebugRequestsAsTextOrJson) {
  calls_.Add({.method = "Matmul", .code = absl::StatusCode::kInternal, .message = "broke"});
  const std::string text = Ask("GET", "/debug/requests");
  EXPECT_THAT(text, HasSubstr("Content-Type: text/plain; charset=utf-8\r\n"));
  EXPECT_THAT(text, HasSubstr("broke"));
  for (const char* query : {"format=json", "a=b&format=json", "format=json&a=b"}) {
    const std::string json = Ask("GET", std::string("/debug/requests?") + query);
    EXPECT_THAT(json, HasSubstr("Content-Type: application/json\r\n")) << query;
    EXPECT_EQ(nlohmann::json::parse(BodyOf(json))["failed"]["count"], 1) << query;
  }
  for (const std::string query : {"?", "?format", "?format=", "?format=xml", "?format=jsonx",
                                  "?xformat=json", "?%00", "?&&&=&"}) {
    EXPECT_THAT(Ask("GET", "/debug/requests" + query), HasSubstr("Content-Type: text/plain"))
        << query;
  }
}

// DNS rebinding: the name in a browser's address bar may lead here.
TEST_F(HttpServerTest, DebugRequestsAreNotForOtherNames) {
  calls_.Add({.method = "Matmul", .code = absl::StatusCode::kInternal, .message = "broke"});
  const std::string answer = Ask("GET", "/debug/requests", "rebound.example");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 421 Misdirected Request\r\n"));
  EXPECT_THAT(answer, Not(HasSubstr("broke")));
  EXPECT_THAT(Ask("GET", "/metrics", "rebound.example"), StartsWith("HTTP/1.1 200"));
}

TEST_F(HttpServerTest, LongQueries) {
  const std::string most(12'000, 'q');
  for (const std::string path : {"/", "/debug/requests", "/api/status", "/metrics"}) {
    EXPECT_THAT(Ask("GET", path + "?" + most), StartsWith("HTTP/1.1 200 ")) << path;
    EXPECT_THAT(Ask("GET", path + "?format=" + most), StartsWith("HTTP/1.1 200 ")) << path;
    EXPECT_THAT(Ask("GET", path + "?" + std::string(100'000, 'q')), HasSubstr(" 400 ")) << path;
  }
}

TEST_F(HttpServerTest, WithoutCallsThereIsNoDebugPage) {
  server_ = HttpServer::Start("127.0.0.1:0", &metrics_).value();
  for (const char* path : {"/debug/requests", "/debug/requests?format=json"}) {
    const std::string answer = Ask("GET", path);
    EXPECT_THAT(answer, StartsWith("HTTP/1.1 403 Forbidden\r\n"));
    EXPECT_THAT(BodyOf(answer), HasSubstr("--debug-pages"));
    EXPECT_EQ(BodyOf(answer).find('\n'), BodyOf(answer).size() - 1);  // one line
  }
  EXPECT_EQ(nlohmann::json::parse(BodyOf(Ask("GET", "/api/status")))["debug_requests"], false);
}

TEST_F(HttpServerTest, UnknownPages) {
  for (const char* path : {"/metricsx", "/debug", "/debug/", "/debug/requests/", "/api", "/api/",
                           "/status", "/status.html", "/index.html", "/api/status/x"}) {
    EXPECT_THAT(Ask("GET", path), StartsWith("HTTP/1.1 404 ")) << path;
  }
  EXPECT_THAT(Ask("GET", "/../etc/passwd"), StartsWith("HTTP/1.1 4"));
  EXPECT_THAT(Ask("GET", "/"), HasSubstr("/readyz"));
}

TEST_F(HttpServerTest, OnlyReads) {
  for (const char* method : {"POST", "PUT", "DELETE", "OPTIONS", "NONSENSE"}) {
    EXPECT_THAT(Ask(method, "/metrics"), StartsWith("HTTP/1.1 4")) << method;
  }
}

TEST_F(HttpServerTest, HugeRequestsAreRefused) {
  EXPECT_THAT(Ask("GET", "/" + std::string(100'000, 'a')), HasSubstr(" 400 "));
  EXPECT_THAT(Ask("GET", "/healthz"), StartsWith("HTTP/1.1 200 "));
}

TEST_F(HttpServerTest, SilentConnectionsHoldNothingUpForLong) {
  std::vector<int> silent;
  for (int i = 0; i < 20; ++i) silent.push_back(Connect());
  EXPECT_THAT(Ask("GET", "/healthz"), StartsWith("HTTP/1.1 200 "));
  for (int i = 0; i < 20; ++i) silent.push_back(Connect());
  const auto start = std::chrono::steady_clock::now();
  server_.reset();
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(1500));
  for (const int fd : silent) close(fd);
}

// civetweb alone takes up to 2 s to see that it shall stop.
TEST_F(HttpServerTest, ClosesAtOnceWhateverItListensOn) {
  for (const char* address : {"0.0.0.0:0", "127.0.0.2:0", "localhost:0"}) {
    server_ = HttpServer::Start(address, &metrics_).value();
    const auto start = std::chrono::steady_clock::now();
    server_.reset();
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(900)) << address;
  }
}

TEST_F(HttpServerTest, BadAddresses) {
  const absl::Status busy = HttpServer::Start(server_->address(), &metrics_).status();
  EXPECT_EQ(busy.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(busy.message()), HasSubstr(server_->address()));
  for (const char* nonsense : {"", "nowhere", ":80", "127.0.0.1:x", "127.0.0.1:70000", "[::1]:0",
                               "127.0.0.1:0,0.0.0.0:0", "127.0.0.1:80s"}) {
    EXPECT_EQ(HttpServer::Start(nonsense, &metrics_).status().code(),
              absl::StatusCode::kInvalidArgument)
        << nonsense;
  }
}

}  // namespace
}  // namespace tcgemm
