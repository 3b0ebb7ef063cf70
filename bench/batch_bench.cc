// Does sharing launches pay? Rounds of simultaneous 64³ requests against servers that may batch,
// and against one that may not, in turns.
//
//   batch_bench [--rounds N] [--calls N] SERVER      SERVER: path of tcgemm-server
//
// Prints one JSON object: the median time of a round on each server (first call to last answer),
// and ratios to --max-batch 1. "control" is a second server of that kind: how far its ratio is from
// 1 is what the measurement cannot tell apart.
#include <grpcpp/grpcpp.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "tcgemm/v1/matmul.grpc.pb.h"

namespace tcgemm {
namespace {

constexpr int64_t kSide = 64;
constexpr int kWarmUpRounds = 5;

struct Options {
  int rounds = 40;
  int calls = 64;
  std::string server;
};

struct Process {
  pid_t pid = 0;
  std::string address;
};

// Starts a server on a port of its own and waits until it is ready.
Process StartServer(const std::string& path, std::vector<std::string> flags) {
  int pipe_fds[2];
  if (pipe(pipe_fds) != 0) std::abort();
  flags.insert(flags.begin(), path);
  for (const char* flag : {"--listen=127.0.0.1:0", "--metrics-listen=127.0.0.1:0",
                           "--pinned-bytes=64MiB", "--queue-bytes=300MiB", "--log-level=error"}) {
    flags.push_back(flag);
  }
  std::vector<char*> arguments;
  for (std::string& flag : flags) arguments.push_back(flag.data());
  arguments.push_back(nullptr);
  const pid_t pid = fork();
  if (pid == 0) {
    dup2(pipe_fds[1], STDOUT_FILENO);
    execv(path.c_str(), arguments.data());
    _exit(127);
  }
  close(pipe_fds[1]);
  std::string line;
  for (char c = 0; read(pipe_fds[0], &c, 1) == 1 && c != '\n';) line += c;
  constexpr std::string_view kReady = "READY grpc=";
  if (line.rfind(kReady, 0) != 0) {
    std::fprintf(stderr, "batch_bench: %s did not start\n", path.c_str());
    std::exit(1);
  }
  return {pid, line.substr(kReady.size(), line.find(' ', kReady.size()) - kReady.size())};
}

v1::MatmulRequest RandomRequest(std::mt19937& rng) {
  v1::MatmulRequest request;
  for (v1::Operand* operand : {request.mutable_a(), request.mutable_b()}) {
    operand->set_rows(kSide);
    operand->set_cols(kSide);
    operand->set_dtype(v1::BF16);
    std::string& bytes = *operand->mutable_inline_();
    for (int64_t i = 0; i < kSide * kSide; ++i) {
      const uint32_t bits = rng() & 0xbfff;  // |x| < 2
      bytes += static_cast<char>(bits & 0xff);
      bytes += static_cast<char>(bits >> 8);
    }
  }
  return request;
}

class Server {
 public:
  Server(const Options& options, std::string name, const std::vector<std::string>& flags)
      : name(std::move(name)), process_(StartServer(options.server, flags)) {}

  void Connect() {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    stub_ = v1::MatmulService::NewStub(
        grpc::CreateCustomChannel(process_.address, grpc::InsecureChannelCredentials(), arguments));
  }
  void Stop() {
    stub_.reset();
    kill(process_.pid, SIGTERM);
    waitpid(process_.pid, nullptr, 0);
  }

  // One round: the time until the last answer, in milliseconds.
  double Round(const std::vector<v1::MatmulRequest>& requests) {
    struct Call {
      grpc::ClientContext context;
      v1::MatmulResponse response;
      grpc::Status status;
      std::unique_ptr<grpc::ClientAsyncResponseReader<v1::MatmulResponse>> reader;
    };
    grpc::CompletionQueue queue;
    std::vector<Call> calls(requests.size());
    const auto start = std::chrono::steady_clock::now();
    for (size_t i = 0; i < calls.size(); ++i) {
      calls[i].reader = stub_->AsyncMatmul(&calls[i].context, requests[i], &queue);
      calls[i].reader->Finish(&calls[i].response, &calls[i].status, &calls[i]);
    }
    int64_t companions = 0;
    for (size_t i = 0; i < calls.size(); ++i) {
      void* tag = nullptr;
      bool ok = false;
      queue.Next(&tag, &ok);
      const Call& call = *static_cast<Call*>(tag);
      if (!call.status.ok()) {
        std::fprintf(stderr, "batch_bench: %s\n", call.status.error_message().c_str());
        std::exit(1);
      }
      companions += call.response.batched_with();
    }
    const auto end = std::chrono::steady_clock::now();
    batched_with = static_cast<double>(companions) / static_cast<double>(calls.size());
    return std::chrono::duration<double, std::milli>(end - start).count();
  }

  const std::string name;
  double batched_with = 0;  // mean of the last round
  std::vector<double> rounds_ms;
  std::vector<double> companions;

 private:
  const Process process_;
  std::unique_ptr<v1::MatmulService::Stub> stub_;
};

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

int Main(const Options& options) {
  std::vector<std::unique_ptr<Server>> servers;
  const auto add = [&](const char* name, const std::vector<std::string>& flags) {
    servers.push_back(std::make_unique<Server>(options, name, flags));
  };
  add("max_batch_1", {"--max-batch=1"});
  add("batching", {});
  add("batching_window_2ms", {"--max-queue-delay-us=2000"});
  add("control", {"--max-batch=1"});
  // After the forks: a process with gRPC's threads must not fork.
  for (const auto& server : servers) server->Connect();

  std::mt19937 rng(1);
  for (int round = -kWarmUpRounds; round < options.rounds; ++round) {
    std::vector<v1::MatmulRequest> requests;
    for (int i = 0; i < options.calls; ++i) requests.push_back(RandomRequest(rng));
    // Another one goes first each time: what the previous one left behind hits all alike.
    for (size_t i = 0; i < servers.size(); ++i) {
      Server& server = *servers[(i + static_cast<size_t>(round + kWarmUpRounds)) % servers.size()];
      const double ms = server.Round(requests);
      if (round < 0) continue;
      server.rounds_ms.push_back(ms);
      server.companions.push_back(server.batched_with);
    }
  }
  const double alone = Median(servers[0]->rounds_ms);
  nlohmann::json report = {{"calls", options.calls}, {"rounds", options.rounds}, {"side", kSide}};
  for (const auto& server : servers) {
    const double ms = Median(server->rounds_ms);
    report[server->name] = {{"round_ms", ms},
                            {"ratio_to_max_batch_1", ms / alone},
                            {"batched_with", Median(server->companions)}};
    server->Stop();
  }
  std::printf("%s\n", report.dump().c_str());
  return 0;
}

}  // namespace
}  // namespace tcgemm

int main(int argc, char** argv) {
  tcgemm::Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string_view arg = argv[i];
    if (arg == "--rounds" && i + 1 < argc) {
      options.rounds = std::max(1, std::atoi(argv[++i]));
    } else if (arg == "--calls" && i + 1 < argc) {
      options.calls = std::max(1, std::atoi(argv[++i]));
    } else {
      options.server = arg;
    }
  }
  if (options.server.empty()) {
    std::fprintf(stderr, "usage: batch_bench [--rounds N] [--calls N] SERVER\n");
    return 2;
  }
  return tcgemm::Main(options);
}
