// Closed-loop clients against a running server, in turns with the echo server of equal bytes.
//
//   rpc_bench --server ADDR [--server ADDR...] [--paths PATH,...] [--sizes 4096,128]
//             [--clients 1,8,64] [--lanes 2,4,8 --shapes 4096x64x4096,...] [--seconds 2] [--csv
//             FILE]
//
// Paths: inline, stream, lanes, shared_memory, shared_memory_resident; of --shapes, resident_b (B
// on the server, A and D inline, beside an echo of as many bytes) and resident (nothing travels, D
// stays too).
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
#include <grpcpp/support/byte_buffer.h>
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
#include <string_view>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/statusor.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "bench/echo_process.h"
#include "bench/lanes_arm.h"
#include "bench/random_request.h"
#include "bench/rpc_clients.h"
#include "bench/rpc_loop.h"
#include "bench/stream_request.h"
#include "client/cli/shape.h"
#include "client/matrix_client.h"
#include "matrix/matrix.h"
#include "server/main/allocator.h"

namespace tcgemm {
namespace {

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

struct ShapeEcho {
  std::string shape;
  Echo echo;
};

struct Row {
  nlohmann::json json;
  std::string csv;
  int failures = 0;
};

// Of equal bytes for what is inline; for paths that send no matrix, a small one.
struct Limit {
  const char* name = "echo";
  const Echo* echo = nullptr;
};

// What of the matrices a path moves at least once: over the socket, or over the bus.
double MovedBytes(const Cell& cell) {
  const auto m = static_cast<double>(cell.shape.m);
  const auto n = static_cast<double>(cell.shape.n);
  const auto k = static_cast<double>(cell.shape.k);
  if (cell.path == "resident") return 0;
  if (cell.path == "shared_memory_resident") return 2 * m * n;
  if (cell.path == "resident_b") return 2 * (m * k + m * n);
  return 2 * (m * k + k * n + m * n);
}

nlohmann::json StagesOf(const Loop& loop) {
  nlohmann::json stages = nlohmann::json::object();
  for (size_t i = 0; i < kStages.size(); ++i) {
    std::vector<double> values;
    for (const Stages& s : loop.stages) values.push_back(s[i]);
    stages[std::string(kStages[i]) + "_ms"] = Percentile(std::move(values), 0.5);
  }
  stages["respond_ms"] = Percentile(loop.respond_ms, 0.5);
  return stages;
}

Row Report(const Cell& cell, const Limit& limit, const Loop& ours, const Loop& theirs,
           bool is_stream) {
  const double rate = static_cast<double>(ours.latency_ms.size()) / ours.wall_seconds;
  const double echo_rate = static_cast<double>(theirs.latency_ms.size()) / theirs.wall_seconds;
  const double p50 = Percentile(ours.latency_ms, 0.5);
  const double p99 = Percentile(ours.latency_ms, 0.99);
  const double gbytes = rate * MovedBytes(cell) / 1e9;
  std::vector<double> sums;
  for (size_t i = 0; i < ours.stages.size(); ++i) {
    const Stages& s = ours.stages[i];
    sums.push_back(std::accumulate(s.begin(), s.end(), ours.respond_ms[i]));
  }
  const char* transport = limit.echo->is_unix ? "unix" : "tcp";
  Row row{.failures = ours.failures + theirs.failures};
  row.json = {{"path", cell.path},
              {"transport", transport},
              {"m", cell.shape.m},
              {"n", cell.shape.n},
              {"k", cell.shape.k},
              {"clients", cell.clients},
              {"calls", ours.latency_ms.size()},
              {"p50_ms", p50},
              {"p99_ms", p99},
              {"requests_per_s", rate},
              {"gbytes_per_s", gbytes},
              {"tflops", rate * cell.shape.flops() / 1e12},
              {"mean_batch",
               ours.launches > 0 ? static_cast<double>(ours.stages.size()) / ours.launches : 0},
              {"echo_p50_ms", Percentile(theirs.latency_ms, 0.5)},
              {"echo_requests_per_s", echo_rate},
              {"ratio_to_echo", rate / echo_rate},
              {"stages_p50", StagesOf(ours)},
              {"failures", row.failures}};
  if (!is_stream) {
    row.json["stages_sum_p50_ms"] = Percentile(sums, 0.5);
    row.json["stages_share_of_p50"] = p50 > 0 ? Percentile(sums, 0.5) / p50 : 0;
  }
  if (row.failures > 0) row.json["error"] = ours.error.empty() ? theirs.error : ours.error;
  row.csv = absl::StrFormat("%s,%s,%d,%d,%d,%d,%.1f,%.1f,%.3f,%.1f,%s,%.3f\n", cell.path, transport,
                            cell.shape.m, cell.shape.n, cell.shape.k, cell.clients, p50 * 1e3,
                            p99 * 1e3, gbytes, rate, limit.name, rate / echo_rate);
  return row;
}

// B of a cell on the server, and the request that multiplies by it. The matrix goes with the
// process's server.
absl::StatusOr<grpc::ByteBuffer> MakeResidentRequest(const Cell& cell) {
  Matrix b(cell.shape.k, cell.shape.n, DType::kBf16);
  FillNormal(b, 2);
  TCGEMM_ASSIGN_OR_RETURN(const std::unique_ptr<client::MatrixClient> client,
                          client::MatrixClient::Create({.server = cell.server}));
  TCGEMM_ASSIGN_OR_RETURN(const std::string handle,
                          client->Upload(b.view(), {}, {.timeout = std::chrono::seconds(60)}));
  return MakeRequestForResident(cell.shape.m, cell.shape.k, handle);
}

Row Measure(const Cell& cell, const Limit& limit) {
  const Echo& echo = *limit.echo;
  Request request;
  request.result_bytes = static_cast<size_t>(2 * cell.shape.m * cell.shape.n);
  std::unique_ptr<client::BenchProduct> product;
  absl::Status ready;
  if (cell.path == "resident_b") {
    absl::StatusOr<grpc::ByteBuffer> made = MakeResidentRequest(cell);
    ready = made.status();
    if (made.ok()) request.message = *std::move(made);
  } else {
    request.message = MakeRandomRequest(echo.size);
  }
  if (cell.path == "stream") request.stream = MakeRandomStream(cell.shape.n, size_t{1} << 20);
  if (cell.is_shared() || cell.path == "resident") {
    auto opened = OpenProduct(cell);
    ready = opened.status();
    if (opened.ok()) {
      product = *std::move(opened);
      RunProduct(*product, cell.clients, /*seconds=*/0);  // connects
    }
  }
  if (!ready.ok()) {
    return {.json = {{"path", cell.path}, {"error", ready.ToString()}}, .failures = 1};
  }
  Loop ours;
  Loop theirs;
  for (int turn = 0; turn < kTurns; ++turn) {
    for (const bool is_ours : {true, false}) {
      Loop& total = is_ours ? ours : theirs;
      const double seconds = cell.seconds / kTurns;
      const Loop loop = is_ours && product != nullptr
                            ? RunProduct(*product, cell.clients, seconds)
                            : RunClients(is_ours ? cell.server : echo.address, request,
                                         cell.clients, seconds, is_ours);
      total.Append(loop);
      total.wall_seconds += loop.wall_seconds;
    }
  }
  return Report(cell, limit, ours, theirs, request.is_stream());
}

bool Has(const std::vector<std::string>& paths, std::string_view path) {
  return std::find(paths.begin(), paths.end(), path) != paths.end();
}

absl::StatusOr<GemmShape> ShapeOf(const std::string& text) {
  TCGEMM_ASSIGN_OR_RETURN(const client::ProductShape shape, client::ParseShape("--shapes", text));
  return GemmShape{.m = shape.m, .n = shape.n, .k = shape.k};
}

// The servers to compare with. Started before any gRPC in this process: a fork of a process with
// its threads would be broken.
class Echoes {
 public:
  Echoes(const Arguments& arguments, const std::string& folder) {
    for (const bool is_unix : {true, false}) {
      for (const int64_t size : arguments.sizes) {
        by_size_.push_back(StartEcho(folder, is_unix, size, std::to_string(size)));
      }
      small_[is_unix] = StartEcho(folder, is_unix, kSmallSize, "small");
      if (!Has(arguments.paths, "resident_b")) continue;
      for (const std::string& text : arguments.shapes) {
        const absl::StatusOr<GemmShape> shape = ShapeOf(text);
        if (!shape.ok()) continue;  // said when it is measured
        const auto bytes = static_cast<size_t>(2 * shape->m * shape->n);
        by_shape_.push_back({text, StartEchoOfBytes(folder, is_unix, bytes, text)});
      }
    }
  }
  ~Echoes() {
    std::vector<Echo> all(by_size_);
    all.insert(all.end(), small_.begin(), small_.end());
    for (const ShapeEcho& echo : by_shape_) all.push_back(echo.echo);
    for (const Echo& echo : all) {
      kill(echo.pid, SIGKILL);
      waitpid(echo.pid, nullptr, 0);
      if (echo.is_unix) unlink(echo.address.substr(5).c_str());
    }
  }
  Echoes(const Echoes&) = delete;
  Echoes& operator=(const Echoes&) = delete;

  const std::vector<Echo>& by_size() const { return by_size_; }
  Limit SmallLimit(bool is_unix) const { return {"small_echo", &small_[is_unix]}; }
  // Of path resident_b.
  Limit LimitOf(const std::string& shape, bool is_unix) const {
    for (const ShapeEcho& echo : by_shape_) {
      if (echo.shape == shape && echo.echo.is_unix == is_unix) return {"echo", &echo.echo};
    }
    return SmallLimit(is_unix);
  }

 private:
  std::vector<Echo> by_size_;
  std::array<Echo, 2> small_;
  std::vector<ShapeEcho> by_shape_;
};

class Bench {
 public:
  Bench(const Arguments& arguments, const Echoes& echoes)
      : arguments_(arguments), echoes_(echoes) {}

  void MeasureServer(const std::string& server) {
    const bool is_unix = server.rfind("unix:", 0) == 0;
    for (const Echo& echo : echoes_.by_size()) {
      if (echo.is_unix != is_unix) continue;
      for (const int clients : arguments_.clients) {
        const auto bytes = static_cast<size_t>(6 * echo.size * echo.size) * clients;
        if (bytes <= kMaxBytesAtOnce) MeasureSize(server, echo, clients);
      }
    }
    for (const std::string& shape : arguments_.shapes) {
      for (const char* path : {"resident_b", "resident"}) {
        if (Has(arguments_.paths, path)) MeasureResident(server, path, shape);
      }
      if (!Has(arguments_.paths, kLanes)) continue;
      for (const int lanes : arguments_.lanes) {
        const LanesRow row = MeasureLanes(
            {.server = server, .shape = shape, .lanes = lanes, .seconds = arguments_.seconds});
        Keep(row.json, row.csv, row.failures);
      }
    }
  }
  const std::string& csv() const { return csv_; }
  int failures() const { return failures_; }

 private:
  void Keep(const std::string& json, const std::string& line, int failed) {
    std::printf("%s\n", json.c_str());
    std::fflush(stdout);
    csv_ += line;
    failures_ += failed;
  }
  void MeasureSize(const std::string& server, const Echo& echo, int clients) {
    for (const std::string& path : arguments_.paths) {
      const GemmShape shape = {.m = echo.size, .n = echo.size, .k = echo.size};
      const Cell cell = {server, path, shape, clients, arguments_.seconds};
      if (path == kLanes || cell.is_resident()) continue;
      if (cell.is_shared() && !echo.is_unix) continue;
      const Row row =
          Measure(cell, cell.is_shared() ? echoes_.SmallLimit(echo.is_unix) : Limit{"echo", &echo});
      Keep(row.json.dump(), row.csv, row.failures);
    }
  }
  void MeasureResident(const std::string& server, const std::string& path,
                       const std::string& text) {
    const absl::StatusOr<GemmShape> shape = ShapeOf(text);
    if (!shape.ok()) {
      Keep(nlohmann::json({{"error", shape.status().ToString()}}).dump(), "", 1);
      return;
    }
    const bool is_unix = server.rfind("unix:", 0) == 0;
    const Limit limit =
        path == "resident" ? echoes_.SmallLimit(is_unix) : echoes_.LimitOf(text, is_unix);
    for (const int clients : arguments_.clients) {
      const Row row = Measure({server, path, *shape, clients, arguments_.seconds}, limit);
      Keep(row.json.dump(), row.csv, row.failures);
    }
  }

  const Arguments& arguments_;
  const Echoes& echoes_;
  std::string csv_ =
      "path,transport,m,n,k,clients,p50_us,p99_us,gbytes_per_s,requests_per_s,limit_name,"
      "ratio_to_limit\n";
  int failures_ = 0;
};

int Main(const Arguments& arguments) {
  char folder[] = "/tmp/tcgemm-rpc-XXXXXX";
  if (mkdtemp(folder) == nullptr) return 1;
  int failures;
  std::string csv;
  {
    const Echoes echoes(arguments, folder);
    TuneAllocator();
    Bench bench(arguments, echoes);
    for (const std::string& server : arguments.servers) bench.MeasureServer(server);
    failures = bench.failures();
    csv = bench.csv();
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
      ->check(CLI::IsMember({"inline", "stream", kLanes, "shared_memory", "shared_memory_resident",
                             "resident_b", "resident"}));
  app.add_option("--sizes", arguments.sizes)->delimiter(',')->check(CLI::Range(1, 16384));
  app.add_option("--clients", arguments.clients)->delimiter(',')->check(CLI::Range(1, 1024));
  app.add_option("--lanes", arguments.lanes)->delimiter(',')->check(CLI::Range(2, 8));
  app.add_option("--shapes", arguments.shapes, "MxNxK, of lanes, resident_b, resident")
      ->delimiter(',');
  app.add_option("--seconds", arguments.seconds)->check(CLI::Range(0.01, 600.0));
  app.add_option("--csv", arguments.csv);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  return tcgemm::Main(arguments);
}
