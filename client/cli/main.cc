// tcgemm-client: flags, and which command they call.
#include <malloc.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "base/status_macros.h"
#include "client/cli/bench.h"
#include "client/cli/commands.h"
#include "client/cli/matrices.h"
#include "client/cli/version.h"
#include "client/credentials.h"
#include "client/duration.h"
#include "client/lane_policy.h"

namespace tcgemm::client {
namespace {

constexpr char kSharedMemoryHelp[] =
    "through memory that is shared with the server (--server unix:/path; the server needs "
    "--allow-shared-memory)";

struct Arguments {
  GlobalOptions global;
  bool smoke_shared_memory = false;
  std::string service;
  MatmulOptions matmul;
  CheckOptions check;
  BenchOptions bench;
  UploadCommand upload;
  DownloadCommand download;
  std::string handle;  // of delete
};

// CLI11 shows the returned text, if any, as what is wrong.
std::string SetTimeout(const std::string& text, Nanos& timeout) {
  const absl::StatusOr<Nanos> parsed = ParseDuration(text);
  if (!parsed.ok()) return std::string(parsed.status().message());
  if (*parsed <= Nanos(0)) return "must be more than 0";
  timeout = *parsed;
  return "";
}

void AddGlobalFlags(CLI::App& app, GlobalOptions& global) {
  app.set_version_flag("--version", std::string("tcgemm-client ") + kVersion);
  app.add_option("--server", global.server, "HOST:PORT or unix:/path")
      ->envname("TCGEMM_SERVER")
      ->capture_default_str();
  app.add_option_function<std::string>(
         "--timeout",
         [&global](const std::string& text) {
           const std::string wrong = SetTimeout(text, global.timeout);
           if (!wrong.empty()) throw CLI::ValidationError("--timeout", wrong);
         },
         "of each call, retries included; a number and a unit (500ms, 2m)")
      ->default_str("30s");
  ClientSecurity& security = global.security;
  app.add_option("--tls-ca", security.tls_ca,
                 "PEM file: TLS, with a server whose certificate leads to one of these")
      ->envname("TCGEMM_TLS_CA");
  app.add_option("--tls-cert", security.tls_cert, "PEM file: this client's certificate (mTLS)")
      ->envname("TCGEMM_CLIENT_TLS_CERT");
  app.add_option("--tls-key", security.tls_key, "PEM file: its private key")
      ->envname("TCGEMM_CLIENT_TLS_KEY");
  app.add_option("--tls-server-name", security.tls_server_name,
                 "the name in the server's certificate; else the host of --server")
      ->envname("TCGEMM_TLS_SERVER_NAME");
  app.add_option("--token-file", global.token_file,
                 "a file whose first line is the bearer token to send; or TCGEMM_TOKEN holds it");
  app.add_flag("--json", global.json, "print one JSON object, alone on stdout");
  app.add_flag("-v,--verbose", global.verbose, "say more about how it went, on stderr");
}

void AddLanes(CLI::App& command, int& lanes, const std::string& help) {
  command.add_option("--lanes", lanes, "connections that carry " + help)
      ->check(CLI::Range(1, kMostLanes))
      ->default_str("as many as help");
}

template <typename Options>
void AddOperandFlags(CLI::App& command, Options& options) {
  command.add_flag("--transpose-a", options.transpose_a, "multiply with the transpose of A");
  command.add_flag("--transpose-b", options.transpose_b, "multiply with the transpose of B");
  command.add_flag("--npy-u2-is-bf16", options.u2_is_bf16, "read '<u2' arrays as bf16 patterns");
}

void AddEpilogueFlags(CLI::App& command, EpilogueFlags& flags) {
  command.add_option("--alpha", flags.alpha, "factor of the product")->capture_default_str();
  command.add_option("--beta", flags.beta, "factor of C; default: 1 with --c");
  command.add_option("--c", flags.c, "what is added to the product: a file, as A, not rounded");
  command.add_option("--bias", flags.bias, "a row or a column that is added: a file, as C");
  command.add_option("--bias-axis", flags.bias_axis, "which of them, where its length fits both")
      ->check(CLI::IsMember({"auto", "row", "column"}))
      ->capture_default_str();
  command.add_option("--activation", flags.activation, "what D goes through; gelu is the erf form")
      ->check(CLI::IsMember({"none", "relu", "gelu", "silu"}))
      ->capture_default_str();
}

CLI::Option* AddDuration(CLI::App& command, const std::string& flag, Nanos& value,
                         const std::string& help) {
  return command.add_option_function<std::string>(
      flag,
      [flag, &value](const std::string& text) {
        const absl::StatusOr<Nanos> parsed = ParseDuration(text);
        if (!parsed.ok()) throw CLI::ValidationError(flag, std::string(parsed.status().message()));
        value = *parsed;
      },
      help);
}

void AddBench(CLI::App& app, BenchOptions& options) {
  CLI::App* const bench = app.add_subcommand("bench", "repeat a product; latencies and rates");
  bench->add_option("--shape", options.shape, "MxNxK: normal random operands")
      ->capture_default_str();
  bench->add_option("--output", options.output, "type of D")
      ->check(CLI::IsMember({"bf16", "fp32"}))
      ->capture_default_str();
  bench->add_option("--path", options.path, "one message each way, or a stream of panels")
      ->check(CLI::IsMember({"unary", "stream"}))
      ->capture_default_str();
  bench->add_flag("--transpose-a", options.transpose_a, "A is stored as its transpose");
  bench->add_flag("--transpose-b", options.transpose_b, "B is stored as its transpose");
  bench->add_option("--clients", options.clients, "calls at once, at most 1024")
      ->capture_default_str();
  bench->add_option("--connections", options.connections, "shared by the clients")
      ->check(CLI::PositiveNumber)
      ->default_str("one each");
  bench
      ->add_option("--rate", options.rate,
                   "open loop: requests per second at fixed times, whatever the server does; "
                   "latency counts from when a request was due. Without: closed loop")
      ->check(CLI::PositiveNumber);
  AddDuration(*bench, "--duration", options.duration,
              "of the measurement (default: 10s, or until "
              "--requests are sent)");
  bench->add_option("--requests", options.requests, "end after so many")
      ->check(CLI::PositiveNumber);
  AddDuration(*bench, "--warmup", options.warmup, "before it, not counted")->default_str("1s");
  bench->add_option("--seed", options.seed, "of the operands")->capture_default_str();
  CLI::Option* const shared =
      bench
          ->add_flag("--shared-memory", options.shared_memory,
                     "A and B written once into memory that is shared with the server, D read in "
                     "place")
          ->excludes(bench->get_option("--path"));
  bench->add_flag("--resident", options.resident, "A and B uploaded once; D into shared memory")
      ->needs(shared);
  AddLanes(*bench, options.lanes, "each product; each client has its own");
  bench->get_option("--lanes")->excludes(shared);
}

void AddMatrixCommands(CLI::App& app, Arguments& arguments) {
  UploadCommand& up = arguments.upload;
  CLI::App* const upload = app.add_subcommand("upload", "a .npy file stays on the server");
  upload->add_option("FILE", up.file, "bf16 or fp32 (rounded to bf16)")->required();
  upload->add_option("--name", up.name, "its handle; else the server makes a random one");
  upload->add_flag("--resume", up.resume, "send what a broken upload of --name did not");
  upload->add_option_function<std::string>(
      "--ttl",
      [&up](const std::string& text) {
        const std::string wrong = SetTimeout(text, up.ttl);
        if (!wrong.empty()) throw CLI::ValidationError("--ttl", wrong);
      },
      "how long it stays, in whole seconds; else until it is deleted or its room is needed");
  upload->add_flag("--npy-u2-is-bf16", up.u2_is_bf16, "read uint16 as bf16");
  AddLanes(*upload, up.lanes, "it");
  CLI::App* const download = app.add_subcommand("download", "a resident matrix into a .npy file");
  download->add_option("HANDLE", arguments.download.handle)->required();
  download->add_option("FILE", arguments.download.file)->required();
  AddLanes(*download, arguments.download.lanes, "it");
  app.add_subcommand("list", "the resident matrices that this user may use");
  CLI::App* const remove = app.add_subcommand("delete", "a resident matrix leaves the server");
  remove->add_option("HANDLE", arguments.handle)->required();
}

void AddCommands(CLI::App& app, Arguments& arguments) {
  app.add_subcommand("info", "what the server is and what it accepts");
  CLI::App* const health = app.add_subcommand("health", "exit 0 when SERVING, 1 when not");
  health->add_option("--service", arguments.service, "of the health protocol; empty: the server");
  CLI::App* const smoke =
      app.add_subcommand("smoke", "multiply many shapes and check every element");
  smoke->add_flag("--shared-memory", arguments.smoke_shared_memory, kSharedMemoryHelp);

  MatmulOptions& options = arguments.matmul;
  CLI::App* const matmul =
      app.add_subcommand("matmul", "D = act(alpha·op(A)·op(B) + beta·C + bias)");
  matmul->add_option("A", options.a,
                     "FILE.npy or FILE.safetensors[:TENSOR], bf16 or fp32 (rounded to bf16), or "
                     "@HANDLE");
  matmul->add_option("B", options.b, "the same");
  matmul->add_option("-o", options.out,
                     "the file to write D to, replaced as a whole: .npy or .safetensors[:TENSOR]");
  matmul->add_option("--random", options.random, "MxNxK: normal random operands, not files");
  matmul->add_option("--seed", options.seed, "of --random")->capture_default_str();
  matmul->add_option("--output", options.output, "type of D")
      ->check(CLI::IsMember({"bf16", "fp32"}))
      ->capture_default_str();
  matmul
      ->add_option("--reduction", options.reduction,
                   "fastest: K may be split, for other bits; not in a stream")
      ->check(CLI::IsMember({"same-bits", "fastest"}))
      ->capture_default_str();
  matmul->add_flag("--check", options.check, "prove D right");
  matmul->add_flag("--shared-memory", options.shared_memory, kSharedMemoryHelp);
  matmul->add_flag("--stream", options.stream,
                   "send and receive in panels; what one message cannot hold is streamed anyway");
  matmul->add_flag("--keep", options.keep, "leave D on the server, and print its handle");
  matmul->add_option("--keep-name", options.keep_name, "of --keep; else the handle is random")
      ->needs("--keep");
  AddLanes(*matmul, options.lanes, "operands from files, and D");
  matmul->get_option("--reduction")->excludes(matmul->get_option("--stream"));
  for (const char* const other : {"--stream", "--lanes"}) {
    matmul->get_option("--shared-memory")->excludes(matmul->get_option(other));
  }
  AddOperandFlags(*matmul, options);
  AddEpilogueFlags(*matmul, options.epilogue);

  CLI::App* const check = app.add_subcommand("check", "prove D, as matmul makes it; no server");
  check->add_option("A", arguments.check.a, "a file, as for matmul")->required();
  check->add_option("B", arguments.check.b, "the same")->required();
  check->add_option("D", arguments.check.d, "the same; fp32 is not rounded")->required();
  AddOperandFlags(*check, arguments.check);
  AddEpilogueFlags(*check, arguments.check.epilogue);

  AddBench(app, arguments.bench);
  AddMatrixCommands(app, arguments);
  for (CLI::App* command : app.get_subcommands({})) command->fallthrough();
  app.require_subcommand(1);
  app.footer(
      "Exit codes: 0 right, 1 wrong result or not serving, 2 usage, 3 server unreachable or too "
      "slow,\n4 any other failure.");
}

// Of the file, else of the environment. Not of a flag, which every user of the machine could read.
absl::Status TakeToken(GlobalOptions& global) {
  if (!global.token_file.empty()) {
    TCGEMM_ASSIGN_OR_RETURN(global.security.token, ReadToken(global.token_file));
  } else if (const char* const token = std::getenv("TCGEMM_TOKEN"); token != nullptr) {
    global.security.token = token;
  }
  return absl::OkStatus();
}

ExitCode RunCommand(const std::string& name, const Arguments& arguments) {
  if (name == "info") return RunInfo(arguments.global);
  if (name == "health") return RunHealth(arguments.global, arguments.service);
  if (name == "smoke") {
    return RunSmokeCommand(arguments.global, arguments.smoke_shared_memory);
  }
  if (name == "upload") return RunUpload(arguments.global, arguments.upload);
  if (name == "download") return RunDownload(arguments.global, arguments.download);
  if (name == "list") return RunList(arguments.global);
  if (name == "delete") return RunDelete(arguments.global, arguments.handle);
  if (name == "bench") return RunBench(arguments.global, arguments.bench);
  if (name == "matmul") {
    return UsesResidents(arguments.matmul) ? RunResidentMatmul(arguments.global, arguments.matmul)
                                           : RunMatmul(arguments.global, arguments.matmul);
  }
  return RunCheck(arguments.global, arguments.check);
}

ExitCode Main(int argc, char** argv) {
  CLI::App app("Multiplies matrices on a tcgemm server, and checks what it gets.", "tcgemm-client");
  Arguments arguments;
  AddGlobalFlags(app, arguments.global);
  AddCommands(app, arguments);
  ExitCode code = ExitCode::kRight;
  try {
    app.parse(argc, argv);
    if (const absl::Status token = TakeToken(arguments.global); !token.ok()) {
      std::fprintf(stderr, "tcgemm-client: %s\n", std::string(token.message()).c_str());
      return ExitCode::kUsage;
    }
    code = RunCommand(app.get_subcommands().front()->get_name(), arguments);
  } catch (const CLI::ParseError& error) {
    // Help and the version are no errors: CLI11 gives them exit code 0.
    if (app.exit(error) != 0) code = ExitCode::kUsage;
  }
  // Closed pipes and full disks show here at the latest.
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    std::fprintf(stderr, "tcgemm-client: cannot write to standard output\n");
    if (code != ExitCode::kWrongResult) code = ExitCode::kOtherStatus;
  }
  return code;
}

// gRPC's buffers of some MiB come and go with every message: mapped anew each time, they would cost
// a page fault for each 4 KiB (docs/adr/0009-allocator.md).
void KeepMemory() {
#ifdef __GLIBC__
  mallopt(M_MMAP_MAX, 0);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
#endif
}

}  // namespace
}  // namespace tcgemm::client

int main(int argc, char** argv) {
  tcgemm::client::KeepMemory();
  // A reader that went away is an error to report, not a signal to die of.
  std::signal(SIGPIPE, SIG_IGN);
  return static_cast<int>(tcgemm::client::Main(argc, argv));
}
