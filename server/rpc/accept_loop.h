// Accepts connections on listening sockets, for gRPC to serve.
//
// gRPC 1.51's own listener accepts nothing ever again once an accept has met the limit of open
// files (docs/adr/0018). This goes on, and keeps some descriptors back for the rest of the server.
#ifndef TCGEMM_SERVER_RPC_ACCEPT_LOOP_H_
#define TCGEMM_SERVER_RPC_ACCEPT_LOOP_H_

#include <functional>
#include <thread>
#include <vector>

#include "absl/status/status.h"

namespace tcgemm {

// All run on the loop's thread.
struct AcceptHandlers {
  // A new connection: non-blocking, closed on exec. The callee owns `fd`.
  std::function<void(int fd)> on_connection;
  // One was closed at once, for want of descriptors or because `admit` said no. May be empty.
  std::function<void()> on_refused;
  // Whether to take a new connection, which stays the loop's. May be empty: yes.
  std::function<bool(int fd)> admit;
};

class AcceptLoop {
 public:
  AcceptLoop() = default;
  ~AcceptLoop();
  AcceptLoop(const AcceptLoop&) = delete;
  AcceptLoop& operator=(const AcceptLoop&) = delete;

  // `listening` listen, are non-blocking and stay open until Stop. `name` is the thread's, of at
  // most 15 characters. UNAVAILABLE when there is no descriptor left. Once.
  absl::Status Start(const char* name, std::vector<int> listening, AcceptHandlers handlers);
  // No handler runs after it returned. Idempotent; not from two threads at once.
  void Stop();

 private:
  void Run(const char* name);
  // False when the loop should rest before the next try.
  bool AcceptOne(int listening);

  int wake_fd_ = -1;
  std::vector<int> listening_;
  AcceptHandlers handlers_;
  int descriptor_limit_ = 0;
  std::thread thread_;
};

// Connections whose descriptor would be this or more are refused, so that the metrics port, files
// and shared memory find some when clients hold all others (the lowest free one is given out):
// `open_files`, the process's limit, less 64, or less a quarter of a low one.
int ConnectionDescriptorLimit(int open_files);
// The process's limit of open files.
int OpenFileLimit();

}  // namespace tcgemm

#endif  // TCGEMM_SERVER_RPC_ACCEPT_LOOP_H_
