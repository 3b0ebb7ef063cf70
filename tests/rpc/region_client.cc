#include "tests/rpc/region_client.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

namespace tcgemm {

SocketFolder::SocketFolder() : folder_(testing::TempDir() + "/tcgemm-region-XXXXXX") {
  EXPECT_NE(mkdtemp(folder_.data()), nullptr);
}

SocketFolder::~SocketFolder() {
  EXPECT_EQ(rmdir(folder_.c_str()), 0) << "a socket was not removed";
}

int ConnectTo(const std::string& path) {
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
  EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0) << path;
  return fd;
}

FetchedFd Fetch(int socket, std::string_view token) {
  (void)send(socket, token.data(), token.size(), MSG_NOSIGNAL);
  char text[256] = {};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  iovec bytes = {.iov_base = text, .iov_len = sizeof(text)};
  msghdr message = {};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  const ssize_t got = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  FetchedFd fetched;
  if (got > 0) fetched.text.assign(text, static_cast<size_t>(got));
  const cmsghdr* const header = CMSG_FIRSTHDR(&message);
  if (got > 0 && header != nullptr && header->cmsg_type == SCM_RIGHTS) {
    std::memcpy(&fetched.fd, CMSG_DATA(header), sizeof(int));
  }
  close(socket);
  return fetched;
}

}  // namespace tcgemm
