// What every command is given, and how it fails.
#ifndef TCGEMM_CLIENT_CLI_COMMAND_H_
#define TCGEMM_CLIENT_CLI_COMMAND_H_

#include <cstdint>
#include <functional>
#include <iosfwd>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cli/exit_code.h"
#include "client/client.h"

namespace tcgemm::client {

// Streams and server, so that tests can put their own.
struct Terminal {
  std::ostream& out;
  std::ostream& err;
  std::function<absl::StatusOr<std::unique_ptr<Client>>(const ClientOptions&)> connect;
};

struct GlobalFlags {
  std::string server = "127.0.0.1:50051";
  Nanos timeout = std::chrono::seconds(30);
  bool json = false;
};

struct MatmulFlags {
  std::string a;
  std::string b;
  std::string output_path;
  std::string random;  // "MxNxK" instead of files
  uint64_t seed = 1;
  bool transpose_a = false;
  bool transpose_b = false;
  std::string output = "bf16";
  bool u2_is_bf16 = false;
  bool check = false;
};

struct CheckFlags {
  std::string a;
  std::string b;
  std::string d;
  bool transpose_a = false;
  bool transpose_b = false;
  bool u2_is_bf16 = false;
};

// One run of tcgemm-client. A command writes its result to out; on failure it returns what Fail()
// returns.
class Session {
 public:
  Session(const Terminal& terminal, const GlobalFlags& flags)
      : terminal_(terminal), flags_(flags) {}

  std::ostream& out() const { return terminal_.out; }
  const GlobalFlags& flags() const { return flags_; }
  CallOptions call_options() const { return {.timeout = flags_.timeout}; }
  absl::StatusOr<std::unique_ptr<Client>> Connect() const;

  // One line on err, and with --json the object {"ok": false, "error": …} on out.
  ExitCode Fail(ExitCode code, const std::string& message) const;
  // The same for a call that failed, with advice; asks the server for its limit when it refused a
  // message's size.
  ExitCode FailCall(Client& client, const absl::Status& status) const;
  // The advice alone, on err.
  void ExplainCall(Client& client, const absl::Status& status) const;
  // A line on err that is no failure.
  void Note(const std::string& message) const;

 private:
  std::string Explanation(Client& client, const absl::Status& status) const;

  const Terminal& terminal_;
  const GlobalFlags& flags_;
};

ExitCode RunInfo(const Session& session);
ExitCode RunHealth(const Session& session, const std::string& service);
ExitCode RunSmokeCommand(const Session& session, bool quick);
ExitCode RunMatmul(const Session& session, const MatmulFlags& flags);
ExitCode RunCheck(const Session& session, const CheckFlags& flags);

// The whole program but for signals: parses the arguments, runs the command, flushes out.
int RunCli(int argc, const char* const* argv, const Terminal& terminal);

}  // namespace tcgemm::client

#endif  // TCGEMM_CLIENT_CLI_COMMAND_H_
