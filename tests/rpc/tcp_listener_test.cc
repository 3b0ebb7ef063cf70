#include "server/rpc/tcp_listener.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <future>
#include <string>

#include "absl/strings/str_cat.h"

namespace tcgemm {
namespace {

uint16_t PortOf(const std::string& address) {
  return static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1)));
}

// A connected socket, or -1.
int ConnectV4(uint16_t port) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  to.sin_port = htons(port);
  if (connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof(to)) == 0) return fd;
  close(fd);
  return -1;
}

int ConnectV6(uint16_t port) {
  const int fd = socket(AF_INET6, SOCK_STREAM, 0);
  if (fd < 0) return -1;
  sockaddr_in6 to{};
  to.sin6_family = AF_INET6;
  to.sin6_addr = in6addr_loopback;
  to.sin6_port = htons(port);
  if (connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof(to)) == 0) return fd;
  close(fd);
  return -1;
}

bool HaveV6() { return TcpListener::Bind("[::1]:0").ok(); }

TEST(TcpListenerTest, AcceptsWithoutDelayOnTheRealPort) {
  auto listener = TcpListener::Bind("127.0.0.1:0").value();
  EXPECT_EQ(listener->address().rfind("127.0.0.1:", 0), 0u);
  EXPECT_NE(PortOf(listener->address()), 0);
  std::promise<int> no_delay;
  ASSERT_TRUE(listener
                  ->StartAccepting({[&](int fd) {
                                      int value = 0;
                                      socklen_t length = sizeof(value);
                                      getsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &value, &length);
                                      close(fd);
                                      no_delay.set_value(value);
                                    },
                                    {}})
                  .ok());
  const int client = ConnectV4(PortOf(listener->address()));
  EXPECT_GE(client, 0);
  EXPECT_NE(no_delay.get_future().get(), 0);
  close(client);
}

TEST(TcpListenerTest, ANameMeansEachOfItsAddressesOnOnePort) {
  auto listener = TcpListener::Bind("localhost:0").value();
  EXPECT_EQ(listener->address().rfind("localhost:", 0), 0u);
  const int v4 = ConnectV4(PortOf(listener->address()));
  EXPECT_GE(v4, 0);
  close(v4);
}

TEST(TcpListenerTest, AnyMeansBothFamilies) {
  for (const char* any : {"0.0.0.0:0", "[::]:0"}) {
    if (any[0] == '[' && !HaveV6()) continue;
    auto listener = TcpListener::Bind(any);
    ASSERT_TRUE(listener.ok()) << listener.status();
    const uint16_t port = PortOf((*listener)->address());
    const int v4 = ConnectV4(port);
    EXPECT_GE(v4, 0) << any;
    close(v4);
    if (!HaveV6()) continue;
    const int v6 = ConnectV6(port);
    EXPECT_GE(v6, 0) << any;
    close(v6);
  }
}

TEST(TcpListenerTest, AV4AddressInV6Dress) {
  if (!HaveV6()) GTEST_SKIP() << "no IPv6 here";
  auto listener = TcpListener::Bind("[::ffff:127.0.0.1]:0");
  ASSERT_TRUE(listener.ok()) << listener.status();
  const int v4 = ConnectV4(PortOf((*listener)->address()));
  EXPECT_GE(v4, 0);
  close(v4);
}

TEST(TcpListenerTest, OneAddressOfV6TakesNoV4) {
  if (!HaveV6()) GTEST_SKIP() << "no IPv6 here";
  auto listener = TcpListener::Bind("[::1]:0").value();
  EXPECT_LT(ConnectV4(PortOf(listener->address())), 0);
  const int v6 = ConnectV6(PortOf(listener->address()));
  EXPECT_GE(v6, 0);
  close(v6);
}

TEST(TcpListenerTest, TellsBusyFromNonsense) {
  for (const char* nonsense : {"", "nowhere", ":80", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:-1",
                               "127.0.0.1:65536", "no.such.host.invalid:80"}) {
    EXPECT_EQ(TcpListener::Bind(nonsense).status().code(), absl::StatusCode::kInvalidArgument)
        << nonsense;
  }
  auto first = TcpListener::Bind("127.0.0.1:0").value();
  const std::string busy = first->address();
  for (const std::string& address : {busy, absl::StrCat("0.0.0.0:", PortOf(busy))}) {
    const absl::Status status = TcpListener::Bind(address).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists) << status;
    EXPECT_NE(status.message().find(address), std::string::npos) << status;
  }
  // Not in the way of the next server, as connections in TIME_WAIT are not.
  const int client = ConnectV4(PortOf(busy));
  first.reset();
  EXPECT_TRUE(TcpListener::Bind(busy).ok());
  close(client);
}

}  // namespace
}  // namespace tcgemm
