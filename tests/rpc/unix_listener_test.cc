#include "server/rpc/unix_listener.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <future>
#include <string>

namespace tcgemm {
namespace {

class ListenerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "/tcgemm-listener-XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
    path_ = folder_ + "/s";
  }
  void TearDown() override {
    unlink(path_.c_str());
    rmdir(folder_.c_str());
  }

  // A connected socket, or -1.
  int Connect() {
    const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path_.c_str(), sizeof(address.sun_path) - 1);
    if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0) return fd;
    close(fd);
    return -1;
  }

  std::string folder_;
  std::string path_;
};

TEST_F(ListenerTest, AcceptsWithTheUidAndLargeBuffers) {
  auto listener = UnixListener::Bind(path_);
  ASSERT_TRUE(listener.ok()) << listener.status();
  std::promise<uid_t> uid;
  const absl::Status started = (*listener)->StartAccepting([&](int fd, uid_t peer) {
    int buffer = 0;
    socklen_t length = sizeof(buffer);
    getsockopt(fd, SOL_SOCKET, SO_SNDBUF, &buffer, &length);
    int limit = 0;
    std::ifstream("/proc/sys/net/core/wmem_max") >> limit;
    EXPECT_GE(buffer, std::min(kSocketBufferBytes, limit));
    close(fd);
    uid.set_value(peer);
  });
  ASSERT_TRUE(started.ok()) << started;
  const int fd = Connect();
  ASSERT_GE(fd, 0);
  EXPECT_EQ(uid.get_future().get(), getuid());
  close(fd);
}

TEST_F(ListenerTest, ALiveSocketIsRefusedAndStays) {
  auto first = UnixListener::Bind(path_);
  ASSERT_TRUE(first.ok());
  const auto second = UnixListener::Bind(path_);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_NE(second.status().message().find(path_), std::string::npos);
  const int fd = Connect();
  EXPECT_GE(fd, 0);
  close(fd);
}

TEST_F(ListenerTest, AStaleSocketIsReplaced) {
  const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path_.c_str(), sizeof(address.sun_path) - 1);
  ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  close(fd);
  EXPECT_TRUE(UnixListener::Bind(path_).ok());
}

TEST_F(ListenerTest, AFileIsNotReplaced) {
  std::ofstream(path_) << "precious";
  EXPECT_EQ(UnixListener::Bind(path_).status().code(), absl::StatusCode::kAlreadyExists);
  std::string text;
  std::ifstream(path_) >> text;
  EXPECT_EQ(text, "precious");
}

TEST_F(ListenerTest, RemovesItsSocketButNotAnothersInItsPlace) {
  { auto listener = UnixListener::Bind(path_).value(); }
  EXPECT_NE(access(path_.c_str(), F_OK), 0);
  {
    auto listener = UnixListener::Bind(path_).value();
    unlink(path_.c_str());
    std::ofstream(path_) << "another";
  }
  EXPECT_EQ(access(path_.c_str(), F_OK), 0);
}

TEST_F(ListenerTest, BadPaths) {
  EXPECT_EQ(UnixListener::Bind("").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(UnixListener::Bind(std::string(200, 'x')).status().code(),
            absl::StatusCode::kInvalidArgument);
  const auto no_folder = UnixListener::Bind(folder_ + "/nowhere/s");
  EXPECT_EQ(no_folder.status().code(), absl::StatusCode::kNotFound) << no_folder.status();
}

}  // namespace
}  // namespace tcgemm
