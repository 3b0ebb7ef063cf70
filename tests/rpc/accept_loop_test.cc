#include "server/rpc/accept_loop.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <future>
#include <string>

#include "server/rpc/tcp_listener.h"

namespace tcgemm {
namespace {

int ConnectTo(const std::string& address) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  to.sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
  EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof(to)), 0);
  return fd;
}

// The process's soft limit of open files, for as long as this lives.
class FileLimit {
 public:
  explicit FileLimit(rlim_t files) {
    getrlimit(RLIMIT_NOFILE, &before_);
    const rlimit low{.rlim_cur = files, .rlim_max = before_.rlim_max};
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  }
  ~FileLimit() { setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
};

TEST(AcceptLoopTest, KeepsDescriptorsBack) {
  EXPECT_EQ(ConnectionDescriptorLimit(1 << 20), (1 << 20) - 64);
  EXPECT_EQ(ConnectionDescriptorLimit(256), 192);
  EXPECT_EQ(ConnectionDescriptorLimit(100), 75);
  EXPECT_EQ(ConnectionDescriptorLimit(1), 1);
}

TEST(AcceptLoopTest, RefusesWhatWouldTakeTheLastDescriptors) {
  auto listener = TcpListener::Bind("127.0.0.1:0").value();
  const int lowest = dup(0);
  close(lowest);
  // The client's socket and the eventfd take two; the connection's is beyond three quarters.
  const FileLimit limit((static_cast<rlim_t>(lowest) + 2) * 4 / 3);
  std::promise<void> refused;
  ASSERT_TRUE(listener
                  ->StartAccepting({[](int fd) { ADD_FAILURE() << "accepted as " << fd; },
                                    [&] { refused.set_value(); }})
                  .ok());
  const int client = ConnectTo(listener->address());
  refused.get_future().wait();
  char byte;
  EXPECT_LE(recv(client, &byte, 1, 0), 0) << "closed";
  close(client);
}

// gRPC's own listener does not.
TEST(AcceptLoopTest, GoesOnAfterAcceptFoundNoDescriptor) {
  auto listener = TcpListener::Bind("127.0.0.1:0").value();
  std::promise<int> accepted;
  ASSERT_TRUE(listener->StartAccepting({[&](int fd) { accepted.set_value(fd); }, {}}).ok());
  const int client = socket(AF_INET, SOCK_STREAM, 0);
  close(client);
  std::future<int> got = accepted.get_future();
  int connected;
  {
    // Enough for the client's socket and no more, as descriptors are taken from the lowest.
    const FileLimit limit(static_cast<rlim_t>(client) + 1);
    connected = ConnectTo(listener->address());
    EXPECT_EQ(got.wait_for(std::chrono::milliseconds(100)), std::future_status::timeout);
  }
  const int fd = got.get();
  EXPECT_NE(fcntl(fd, F_GETFL) & O_NONBLOCK, 0);
  EXPECT_NE(fcntl(fd, F_GETFD) & FD_CLOEXEC, 0);
  close(fd);
  close(connected);
}

TEST(AcceptLoopTest, NoHandlerRunsAfterStop) {
  auto listener = TcpListener::Bind("127.0.0.1:0").value();
  std::atomic<bool> stopped = false;
  ASSERT_TRUE(listener
                  ->StartAccepting({[&](int fd) {
                                      EXPECT_FALSE(stopped.load());
                                      close(fd);
                                    },
                                    {}})
                  .ok());
  const int before = ConnectTo(listener->address());
  listener->StopAccepting();
  stopped = true;
  const int after = ConnectTo(listener->address());  // the kernel's backlog takes it
  listener->StopAccepting();
  listener.reset();
  close(before);
  close(after);
}

}  // namespace
}  // namespace tcgemm
