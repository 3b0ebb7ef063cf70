#include "server/http/http_server.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

namespace tcgemm {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class HttpServerTest : public ::testing::Test {
 protected:
  HttpServerTest() : server_(HttpServer::Start("127.0.0.1:0", &metrics_).value()) {}

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
  std::string Ask(const std::string& method, const std::string& path) {
    const int fd = Connect();
    const std::string request = method + " " + path + " HTTP/1.1\r\nHost: x\r\n\r\n";
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

  Metrics metrics_{{.version = "1", .device = "cpu", .methods = {"Matmul"}}};
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

TEST_F(HttpServerTest, UnknownPages) {
  EXPECT_THAT(Ask("GET", "/metricsx"), StartsWith("HTTP/1.1 404 "));
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
