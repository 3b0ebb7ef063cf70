// An echo server in a process of its own, as the server under test is.
#ifndef TCGEMM_BENCH_ECHO_PROCESS_H_
#define TCGEMM_BENCH_ECHO_PROCESS_H_

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <string>

namespace tcgemm {

struct Echo {
  pid_t pid = 0;
  bool is_unix = false;
  int64_t size = 0;
  std::string address;
};

// Forks: before any gRPC in this process, whose threads the child would lack. Answers as long as a
// bf16 product of size³; a unix socket is called `name` in `folder`. Kill it with the pid.
Echo StartEcho(const std::string& folder, bool is_unix, int64_t size, const std::string& name);
// The same, with answers of so many bytes; its size is 0.
Echo StartEchoOfBytes(const std::string& folder, bool is_unix, size_t bytes,
                      const std::string& name);

}  // namespace tcgemm

#endif  // TCGEMM_BENCH_ECHO_PROCESS_H_
