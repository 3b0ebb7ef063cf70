// The commands of tcgemm-client. Each prints and returns how the process ends.
#ifndef TCGEMM_CLIENT_CLI_COMMANDS_H_
#define TCGEMM_CLIENT_CLI_COMMANDS_H_

#include <cstdint>
#include <string>

#include "base/clock.h"
#include "client/cli/epilogue_flags.h"
#include "client/cli/exit_code.h"
#include "client/client.h"

namespace tcgemm::client {

struct GlobalOptions {
  std::string server = "127.0.0.1:50051";
  Nanos timeout = std::chrono::seconds(30);
  bool json = false;
  bool verbose = false;  // say more, on stderr
  ClientSecurity security;
  std::string token_file;  // of security.token

  ClientOptions Connection(int lanes = 1) const {
    return {.server = server, .lanes = lanes, .security = security};
  }
};

struct MatmulOptions {
  std::string a;
  std::string b;
  std::string out;     // empty: not written
  std::string random;  // "MxNxK": instead of files
  uint64_t seed = 1;
  bool transpose_a = false;
  bool transpose_b = false;
  std::string output = "bf16";
  bool u2_is_bf16 = false;
  bool check = false;
  bool shared_memory = false;  // A, B and D pass through memory shared with the server
  bool stream = false;         // in panels, also where one message would do
  bool keep = false;           // D stays on the server …
  std::string keep_name;       // … under this name; empty: a random handle
  int lanes = 0;               // ClientOptions.lanes
  std::string reduction = "same-bits";
  EpilogueFlags epilogue;

  CallOptions Call(Nanos timeout) const {
    return {.timeout = timeout, .fastest = reduction == "fastest"};
  }
};

struct CheckOptions {
  std::string a;
  std::string b;
  std::string d;
  bool transpose_a = false;
  bool transpose_b = false;
  bool u2_is_bf16 = false;
  EpilogueFlags epilogue;
};

ExitCode RunInfo(const GlobalOptions& global);
ExitCode RunHealth(const GlobalOptions& global, const std::string& service);
// `shared_memory`: as MatmulOptions says.
ExitCode RunSmokeCommand(const GlobalOptions& global, bool shared_memory);
ExitCode RunMatmul(const GlobalOptions& global, const MatmulOptions& options);
// Needs no server.
ExitCode RunCheck(const GlobalOptions& global, const CheckOptions& options);

}  // namespace tcgemm::client

#endif  // TCGEMM_CLIENT_CLI_COMMANDS_H_
