// Closed-loop clients against a running server, in turns with the echo server of equal bytes.
//
//   rpc_bench --server ADDR [--server ADDR...] [--paths PATH,...] [--sizes 4096,128]
//             [--clients 1,8,64] [--lanes 2,4,8 --shapes 4096x64x4096,...] [--seconds 2] [--csv
//             FILE]
//
// Paths: inline, stream, lanes, shared_memory, shared_memory_resident.
//
// A client is a thread with a connection of its own that calls, waits, and calls again; n³ products
// in bf16. Path `stream` is MatmulStream in panels of 1 MiB with their CRCs; the server needs
// --resident-bytes for every client's B. Prints a JSON line per server, path, size and number of
// clients: latency, rates, the ratio of requests per second to the echo server's, and the medians
// of the stages that the responses name (of a stream they overlap). Path `lanes` is each of
// --shapes over so many connections, one client, in turns with the same product over one. Cells
// whose requests would not fit 2 GiB at once are left out. Exit: 0 · 1 failed calls · 2 usage.
//
// The shared-memory paths (unix sockets alone; the server needs --allow-shared-memory) write A and
// B once, into a region or, resident, onto the server, and read D where it is: no byte of a matrix
// travels, so that the echo beside them echoes some hundred bytes.
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_format.h"
#include "bench/echo_process.h"
#include "bench/lanes_arm.h"
#include "bench/random_request.h"
#include "bench/rpc_loop.h"
#include "bench/stream_request.h"
#include "server/main/allocator.h"
#include "tcgemm/v1/matmul.pb.h"

namespace tcgemm {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr char kPath[] = "/tcgemm.v1.MatmulService/Matmul";
constexpr size_t kMaxBytesAtOnce = size_t{2} << 30;
constexpr char kLanes[] = "lanes";
constexpr int64_t kSmallSize = 8;  // of the echo beside paths that send no matrix
constexpr int kTurns = 2;          // of ours and of the echo, alternating

struct Arguments {
  std::vector<std::string> servers;
  std::vector<std::string> paths = {"inline"};
  std::vector<int64_t> sizes = {4096, 128};
  std::vector<int> clients = {1, 8, 64};
  std::vector<int> lanes = {2, 4, 8};
  std::vector<std::string> shapes = {"4096x64x4096", "4096x4096x64", "4096x4096x4096"};
  double seconds = 2;
  std::string csv;
};

// What a path sends: one message, or those of a stream.
struct Request {
  grpc::ByteBuffer message;
  std::vector<grpc::ByteBuffer> stream;
  size_t result_bytes = 0;

  bool is_stream() const { return !stream.empty(); }
};

std::shared_ptr<grpc::Channel> Connect(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

void Note(const grpc::Status& status, double total_ms, double respond_ms, const Stages* stages,
          Loop& loop) {
  if (!status.ok()) {
    ++loop.failures;
    loop.error = status.error_message();
    return;
  }
  loop.latency_ms.push_back(total_ms);
  if (stages == nullptr) return;
  loop.stages.push_back(*stages);
  loop.respond_ms.push_back(respond_ms);
}

void CallStreamOnce(const std::shared_ptr<grpc::Channel>& channel, const Request& request,
                    Loop& loop) {
  const auto start = SteadyClock::now();
  const StreamAnswer answer = CallStream(channel, request.stream, request.result_bytes);
  const double total =
      std::chrono::duration<double, std::milli>(SteadyClock::now() - start).count();
  const Stages stages = ReadStages(answer.last, /*is_stream=*/true);
  Note(answer.status, total, total - answer.first_byte_seconds * 1e3, &stages, loop);
}

void CallOnce(const std::shared_ptr<grpc::Channel>& channel, const grpc::ByteBuffer& request,
              bool has_stages, Loop& loop) {
  grpc::ByteBuffer response;
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
  grpc::GenericStub stub(channel);
  grpc::CompletionQueue queue;
  grpc::Status status;
  void* tag;
  bool ok;
  const auto start = SteadyClock::now();
  const auto call = stub.PrepareUnaryCall(&context, kPath, request, &queue);
  call->StartCall();
  // The server's headers come with the first byte of its answer.
  call->ReadInitialMetadata(nullptr);
  queue.Next(&tag, &ok);
  const auto first_byte = SteadyClock::now();
  call->Finish(&response, &status, nullptr);
  queue.Next(&tag, &ok);
  const auto end = SteadyClock::now();
  Stages stages{};
  if (has_stages && status.ok()) stages = ReadStages(response, /*is_stream=*/false);
  Note(status, std::chrono::duration<double, std::milli>(end - start).count(),
       std::chrono::duration<double, std::milli>(end - first_byte).count(),
       has_stages ? &stages : nullptr, loop);
}

// Calls until the time is over, at least twice per client; the first call of each only connects.
Loop RunClients(const std::string& address, const Request& request, int clients, double seconds,
                bool is_ours) {
  std::vector<Loop> loops(clients);
  std::vector<std::shared_ptr<grpc::Channel>> channels;
  std::vector<std::thread> threads;
  for (int i = 0; i < clients; ++i) channels.push_back(Connect(address));
  const auto in_each = [&](const auto& function) {
    for (int i = 0; i < clients; ++i) {
      threads.emplace_back([&function, &loops, &channels, i] { function(channels[i], loops[i]); });
    }
    for (std::thread& thread : threads) thread.join();
    threads.clear();
  };
  const auto call = [&](const std::shared_ptr<grpc::Channel>& channel, Loop& loop) {
    if (is_ours && request.is_stream()) {
      CallStreamOnce(channel, request, loop);
    } else {
      CallOnce(channel, request.message, is_ours, loop);
    }
  };
  in_each([&](const std::shared_ptr<grpc::Channel>& channel, Loop&) {
    Loop warm_up;
    for (int i = 0; i < 2; ++i) call(channel, warm_up);
  });
  const auto start = SteadyClock::now();
  const auto end = start + std::chrono::duration<double>(seconds);
  in_each([&](const std::shared_ptr<grpc::Channel>& channel, Loop& loop) {
    do {
      call(channel, loop);
    } while (SteadyClock::now() < end && loop.failures < 100);
  });
  Loop all;
  for (const Loop& loop : loops) all.Append(loop);
  all.wall_seconds = std::chrono::duration<double>(SteadyClock::now() - start).count();
  return all;
}

double Percentile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[std::min(values.size() - 1, static_cast<size_t>(share * values.size()))];
}

struct Row {
  nlohmann::json json;
  std::string csv;
  int failures = 0;
};

Row Measure(const Cell& cell, const Echo& echo) {
  const auto& [server, path, n, clients, total_seconds] = cell;
  Request request{.message = MakeRandomRequest(echo.size),
                  .result_bytes = static_cast<size_t>(2 * n * n)};
  if (path == "stream") request.stream = MakeRandomStream(n, size_t{1} << 20);
  std::unique_ptr<client::BenchProduct> product;
  if (cell.is_shared()) {
    auto opened = OpenRegion(cell);
    if (!opened.ok()) return {.json = {{"error", opened.status().ToString()}}, .failures = 1};
    product = *std::move(opened);
    RunProduct(*product, clients, /*seconds=*/0);  // connects
  }
  Loop ours;
  Loop theirs;
  for (int turn = 0; turn < kTurns; ++turn) {
    for (const bool is_ours : {true, false}) {
      Loop& total = is_ours ? ours : theirs;
      const double seconds = total_seconds / kTurns;
      const Loop loop =
          is_ours && product != nullptr
              ? RunProduct(*product, clients, seconds)
              : RunClients(is_ours ? server : echo.address, request, clients, seconds, is_ours);
      total.Append(loop);
      total.wall_seconds += loop.wall_seconds;
    }
  }
  const double rate = static_cast<double>(ours.latency_ms.size()) / ours.wall_seconds;
  const double echo_rate = static_cast<double>(theirs.latency_ms.size()) / theirs.wall_seconds;
  const double p50 = Percentile(ours.latency_ms, 0.5);
  const double p99 = Percentile(ours.latency_ms, 0.99);
  const double gbytes = rate * 6.0 * static_cast<double>(n * n) / 1e9;
  nlohmann::json stages = nlohmann::json::object();
  std::vector<double> sums;
  for (size_t i = 0; i < ours.stages.size(); ++i) {
    const Stages& s = ours.stages[i];
    sums.push_back(std::accumulate(s.begin(), s.end(), ours.respond_ms[i]));
  }
  for (size_t i = 0; i < kStages.size(); ++i) {
    std::vector<double> values;
    for (const Stages& s : ours.stages) values.push_back(s[i]);
    stages[std::string(kStages[i]) + "_ms"] = Percentile(std::move(values), 0.5);
  }
  stages["respond_ms"] = Percentile(ours.respond_ms, 0.5);
  const char* transport = echo.is_unix ? "unix" : "tcp";
  Row row{.failures = ours.failures + theirs.failures};
  row.json = {{"path", path},
              {"transport", transport},
              {"n", n},
              {"clients", clients},
              {"calls", ours.latency_ms.size()},
              {"p50_ms", p50},
              {"p99_ms", p99},
              {"requests_per_s", rate},
              {"gbytes_per_s", gbytes},
              {"echo_p50_ms", Percentile(theirs.latency_ms, 0.5)},
              {"echo_requests_per_s", echo_rate},
              {"ratio_to_echo", rate / echo_rate},
              {"stages_p50", stages},
              {"failures", row.failures}};
  if (!request.is_stream()) {
    row.json["stages_sum_p50_ms"] = Percentile(sums, 0.5);
    row.json["stages_share_of_p50"] = p50 > 0 ? Percentile(sums, 0.5) / p50 : 0;
  }
  if (row.failures > 0) row.json["error"] = ours.error.empty() ? theirs.error : ours.error;
  row.csv = absl::StrFormat("%s,%s,%d,%d,%d,%d,%.1f,%.1f,%.3f,%.1f,%s,%.3f\n", path, transport, n,
                            n, n, clients, p50 * 1e3, p99 * 1e3, gbytes, rate,
                            cell.is_shared() ? "small_echo" : "echo", rate / echo_rate);
  return row;
}

int Main(const Arguments& arguments) {
  char folder[] = "/tmp/tcgemm-rpc-XXXXXX";
  if (mkdtemp(folder) == nullptr) return 1;
  // Before any gRPC in this process: a fork of a process with its threads would be broken.
  std::vector<Echo> echoes;
  for (bool is_unix : {true, false}) {
    for (int64_t size : arguments.sizes) {
      echoes.push_back(StartEcho(folder, is_unix, size, std::to_string(size)));
    }
  }
  const Echo small = StartEcho(folder, /*is_unix=*/true, kSmallSize, "small");
  TuneAllocator();
  std::string csv =
      "path,transport,m,n,k,clients,p50_us,p99_us,gbytes_per_s,requests_per_s,limit_name,"
      "ratio_to_limit\n";
  int failures = 0;
  const auto note = [&](const std::string& json, const std::string& line, int failed) {
    std::printf("%s\n", json.c_str());
    std::fflush(stdout);
    csv += line;
    failures += failed;
  };
  const auto measure = [&](const std::string& server, const Echo& echo, int clients) {
    for (const std::string& path : arguments.paths) {
      if (path == kLanes) continue;
      const Cell cell = {server, path, echo.size, clients, arguments.seconds};
      if (cell.is_shared() && !echo.is_unix) continue;
      const Row row = Measure(cell, cell.is_shared() ? small : echo);
      note(row.json.dump(), row.csv, row.failures);
    }
  };
  const bool has_lanes =
      std::find(arguments.paths.begin(), arguments.paths.end(), kLanes) != arguments.paths.end();
  for (const std::string& server : arguments.servers) {
    for (const Echo& echo : echoes) {
      if (echo.is_unix != (server.rfind("unix:", 0) == 0)) continue;
      for (int clients : arguments.clients) {
        const auto bytes = static_cast<size_t>(6 * echo.size * echo.size) * clients;
        if (bytes <= kMaxBytesAtOnce) measure(server, echo, clients);
      }
    }
    for (const std::string& shape : has_lanes ? arguments.shapes : std::vector<std::string>()) {
      for (int lanes : arguments.lanes) {
        const LanesRow row = MeasureLanes(
            {.server = server, .shape = shape, .lanes = lanes, .seconds = arguments.seconds});
        note(row.json, row.csv, row.failures);
      }
    }
  }
  echoes.push_back(small);
  for (const Echo& echo : echoes) {
    kill(echo.pid, SIGKILL);
    waitpid(echo.pid, nullptr, 0);
    if (echo.is_unix) unlink(echo.address.substr(5).c_str());
  }
  rmdir(folder);
  if (!arguments.csv.empty()) {
    FILE* file = std::fopen(arguments.csv.c_str(), "w");
    if (file == nullptr || std::fputs(csv.c_str(), file) < 0 || std::fclose(file) != 0) {
      std::fprintf(stderr, "rpc_bench: cannot write %s\n", arguments.csv.c_str());
      return 1;
    }
  }
  return failures > 0 ? 1 : 0;
}

}  // namespace
}  // namespace tcgemm

int main(int argc, char** argv) {
  tcgemm::Arguments arguments;
  CLI::App app("Closed-loop clients against a running server and an echo server");
  app.add_option("--server", arguments.servers, "HOST:PORT or unix:/path")->required();
  using tcgemm::kLanes;
  app.add_option("--paths", arguments.paths)
      ->delimiter(',')
      ->check(
          CLI::IsMember({"inline", "stream", kLanes, "shared_memory", "shared_memory_resident"}));
  app.add_option("--sizes", arguments.sizes)->delimiter(',')->check(CLI::Range(1, 16384));
  app.add_option("--clients", arguments.clients)->delimiter(',')->check(CLI::Range(1, 1024));
  app.add_option("--lanes", arguments.lanes)->delimiter(',')->check(CLI::Range(2, 8));
  app.add_option("--shapes", arguments.shapes, "MxNxK, of --lanes")->delimiter(',');
  app.add_option("--seconds", arguments.seconds)->check(CLI::Range(0.01, 600.0));
  app.add_option("--csv", arguments.csv);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  return tcgemm::Main(arguments);
}
