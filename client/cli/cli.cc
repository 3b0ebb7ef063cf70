// The command line: flags, and which command they call.
#include <CLI/CLI.hpp>
#include <ostream>

#include "client/cli/command.h"
#include "client/duration.h"

namespace tcgemm::client {
namespace {

struct Arguments {
  GlobalFlags global;
  std::string service;
  bool quick = false;
  MatmulFlags matmul;
  CheckFlags check;
};

void AddGlobalFlags(CLI::App& app, Arguments& arguments) {
  app.set_version_flag("--version", std::string("tcgemm-client ") + TCGEMM_CLIENT_VERSION);
  app.add_option("--server", arguments.global.server, "HOST:PORT or unix:/path")
      ->envname("TCGEMM_SERVER")
      ->capture_default_str();
  app.add_option_function<std::string>(
         "--timeout",
         [&arguments](const std::string& text) {
           const absl::StatusOr<Nanos> timeout = ParseDuration(text);
           if (!timeout.ok() || *timeout <= Nanos(0)) {
             throw CLI::ValidationError("--timeout", timeout.ok()
                                                         ? "must be more than 0"
                                                         : std::string(timeout.status().message()));
           }
           arguments.global.timeout = *timeout;
         },
         "of each call, retries included; a number and a unit (500ms, 2m)")
      ->default_str("30s");
  app.add_flag("--json", arguments.global.json, "print one JSON object, alone on stdout");
}

template <typename Flags>
void AddOperandFlags(CLI::App& command, Flags& flags) {
  command.add_flag("--transpose-a", flags.transpose_a, "multiply with the transpose of A");
  command.add_flag("--transpose-b", flags.transpose_b, "multiply with the transpose of B");
  command.add_flag("--npy-u2-is-bf16", flags.u2_is_bf16, "read '<u2' arrays as bf16 patterns");
}

void AddMatmul(CLI::App& app, Arguments& arguments) {
  MatmulFlags& flags = arguments.matmul;
  CLI::App* const matmul = app.add_subcommand("matmul", "D = op(A)·op(B) of two .npy files");
  matmul->add_option("A", flags.a, "a .npy file, bf16 or fp32 (rounded to bf16)");
  matmul->add_option("B", flags.b, "the same");
  matmul->add_option("-o", flags.output_path, "the .npy file to write D to");
  matmul->add_option("--random", flags.random, "MxNxK: normal random operands instead of files");
  matmul->add_option("--seed", flags.seed, "of --random")->capture_default_str();
  matmul->add_option("--output", flags.output, "type of D")
      ->check(CLI::IsMember({"bf16", "fp32"}))
      ->capture_default_str();
  matmul->add_flag("--check", flags.check, "prove D right before writing it");
  AddOperandFlags(*matmul, flags);
}

void AddCommands(CLI::App& app, Arguments& arguments) {
  app.add_subcommand("info", "what the server is and what it accepts");
  CLI::App* const health = app.add_subcommand("health", "exit 0 when SERVING, 1 when not");
  health->add_option("--service", arguments.service, "of the health protocol; empty: the server");
  CLI::App* const smoke =
      app.add_subcommand("smoke", "multiply many shapes and check every element");
  smoke->add_flag("--quick", arguments.quick, "leave the large products out");
  AddMatmul(app, arguments);
  CLI::App* const check =
      app.add_subcommand("check", "prove that D = op(A)·op(B); needs no server");
  check->add_option("A", arguments.check.a, "a .npy file")->required();
  check->add_option("B", arguments.check.b, "a .npy file")->required();
  check->add_option("D", arguments.check.d, "a .npy file")->required();
  AddOperandFlags(*check, arguments.check);
  for (CLI::App* command : app.get_subcommands({})) command->fallthrough();
  app.require_subcommand(1);
  app.footer(
      "Exit codes: 0 right, 1 wrong result or not serving, 2 usage or files, 3 server unreachable\n"
      "or too slow, 4 any other failure.");
}

ExitCode RunCommand(const std::string& name, const Session& session, const Arguments& arguments) {
  if (name == "info") return RunInfo(session);
  if (name == "health") return RunHealth(session, arguments.service);
  if (name == "smoke") return RunSmokeCommand(session, arguments.quick);
  if (name == "matmul") return RunMatmul(session, arguments.matmul);
  return RunCheck(session, arguments.check);
}

}  // namespace

int RunCli(int argc, const char* const* argv, const Terminal& terminal) {
  CLI::App app("Multiplies matrices on a tcgemm server, and checks what it gets.", "tcgemm-client");
  Arguments arguments;
  AddGlobalFlags(app, arguments);
  AddCommands(app, arguments);
  ExitCode code = ExitCode::kRight;
  try {
    app.parse(argc, argv);
    const std::string command = app.get_subcommands().front()->get_name();
    code = RunCommand(command, Session(terminal, arguments.global), arguments);
  } catch (const CLI::ParseError& error) {
    // Help and the version are no errors: CLI11 gives them exit code 0.
    if (app.exit(error, terminal.out, terminal.err) != 0) code = ExitCode::kUsage;
  }
  terminal.out.flush();
  if (!terminal.out.good()) {
    terminal.err << "tcgemm-client: cannot write to standard output" << std::endl;
    code = Worse(code, ExitCode::kFailed);
  }
  return static_cast<int>(code);
}

}  // namespace tcgemm::client
