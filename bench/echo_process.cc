#include "bench/echo_process.h"

#include <unistd.h>

#include <cstdlib>

#include "bench/echo_server.h"
#include "server/main/allocator.h"

namespace tcgemm {

Echo StartEcho(const std::string& folder, bool is_unix, int64_t size, const std::string& name) {
  Echo echo = StartEchoOfBytes(folder, is_unix, static_cast<size_t>(2 * size * size), name);
  echo.size = size;
  return echo;
}

Echo StartEchoOfBytes(const std::string& folder, bool is_unix, size_t bytes,
                      const std::string& name) {
  int pipe_fds[2];
  if (pipe(pipe_fds) != 0) std::abort();
  const pid_t pid = fork();
  if (pid == 0) {
    close(pipe_fds[0]);
    TuneAllocator();
    const std::string at = is_unix ? "unix:" + folder + "/" + name : "127.0.0.1:0";
    static auto server = EchoServer::Start(at, bytes).value();
    const std::string& address = server->address();
    if (write(pipe_fds[1], address.data(), address.size()) < 0) std::abort();
    close(pipe_fds[1]);
    while (true) pause();
  }
  close(pipe_fds[1]);
  char address[256] = {};
  if (read(pipe_fds[0], address, sizeof(address) - 1) <= 0) std::abort();
  close(pipe_fds[0]);
  return {.pid = pid, .is_unix = is_unix, .address = address};
}

}  // namespace tcgemm
