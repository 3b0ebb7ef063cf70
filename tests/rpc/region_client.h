// What a client does to get its region's descriptor, for the tests.
#ifndef TCGEMM_TESTS_RPC_REGION_CLIENT_H_
#define TCGEMM_TESTS_RPC_REGION_CLIENT_H_

#include <string>
#include <string_view>

namespace tcgemm {

// A folder of its own for sockets; removed, and expected to be empty, at the end.
class SocketFolder {
 public:
  SocketFolder();
  ~SocketFolder();
  std::string path(const std::string& name) const { return folder_ + "/" + name; }

 private:
  std::string folder_;
};

// A connected socket.
int ConnectTo(const std::string& path);

struct FetchedFd {
  int fd = -1;       // −1: none came
  std::string text;  // empty: the connection was closed without a word
};
// Sends what is no token yet, and waits for the answer. Closes `socket`.
FetchedFd Fetch(int socket, std::string_view token);

}  // namespace tcgemm

#endif  // TCGEMM_TESTS_RPC_REGION_CLIENT_H_
