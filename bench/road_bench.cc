// The road without the product: 64 MiB in and 32 MiB out, through tcgemm's server over a device
// that computes nothing, beside an echo server on the same kind of socket with the same raw path.
//
//   road_bench [--rounds N] [--tcp] [--chunk BYTES]
//
// Each server is a process of its own; calls alternate between them (ours twice: in one message,
// and as a stream in panels of --chunk bytes), and the medians are compared. Prints one JSON
// object. How to read it: docs/adr/0009, bench/results/.
#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/codegen/client_unary_call.h>
#include <grpcpp/impl/rpc_method.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "bench/echo_server.h"
#include "bench/null_device.h"
#include "bench/random_request.h"
#include "bench/stream_request.h"
#include "server/engine/engine.h"
#include "server/main/allocator.h"
#include "server/rpc/rpc_server.h"
#include "tcgemm/v1/matmul.pb.h"

namespace tcgemm {
namespace {

constexpr int64_t kSize = 4096;  // A and B 4096 x 4096: 64 MiB in, 32 MiB out
constexpr char kPath[] = "/tcgemm.v1.MatmulService/Matmul";

// Events that nobody counts.
class NoEvents final : public EngineEvents, public CallEvents {
  void OnQueueChanged(int64_t, int64_t) override {}
  void OnLaunch(const LaunchEvent&) override {}
  void OnCopyIn(size_t) override {}
  void OnCopyOut(size_t) override {}
  void OnTensorMaps(const TensorMapCounts&) override {}
  void OnCancelled(Stage) override {}
  void OnNonfiniteOutput() override {}
  void OnDeviceError(DeviceErrorKind) override {}
  void OnDeviceHealth(bool) override {}
  void OnCallStarted(std::string_view) override {}
  void OnCallEnded(std::string_view, absl::StatusCode, Nanos) override {}
  void OnStage(Stage, Nanos) override {}
  void OnRejected(RejectReason) override {}
  void OnCallCancelled(Stage) override {}
  void OnConnectionRefused() override {}
};

// A process that runs `serve`, which writes its address to the given fd and returns at SIGTERM.
struct Child {
  pid_t pid;
  std::string address;
};

Child StartChild(const std::function<void(int)>& serve) {
  int pipe_fds[2];
  if (pipe(pipe_fds) != 0) std::abort();
  const pid_t pid = fork();
  if (pid == 0) {
    close(pipe_fds[0]);
    TuneAllocator();
    serve(pipe_fds[1]);
    pause();
    _exit(0);
  }
  close(pipe_fds[1]);
  char address[256] = {};
  if (read(pipe_fds[0], address, sizeof(address) - 1) <= 0) std::abort();
  return {pid, address};
}

void Publish(int fd, const std::string& address) {
  if (write(fd, address.data(), address.size()) < 0) std::abort();
}

void ServeTcgemm(const std::string& address, int fd) {
  static NoEvents events;
  EngineOptions options;
  options.pinned_bytes = size_t{256} << 20;
  options.resident_bytes = size_t{64} << 20;
  static auto engine = Engine::Create(options, CreateNullDevice(), Clock::Real(), &events).value();
  RpcOptions rpc;
  rpc.listen = {address};
  static auto server = RpcServer::Start(rpc, engine.get(), Clock::Real(), &events).value();
  server->SetServing(true);
  Publish(fd, server->addresses()[0]);
}

void ServeEcho(const std::string& address, int fd) {
  static auto server = EchoServer::Start(address, kSize * kSize * 2).value();
  Publish(fd, server->address());
}

class Caller64 {
 public:
  explicit Caller64(const std::string& address) {
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(-1);
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    channel_ = grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
  }
  // Milliseconds of one call.
  double Call(const grpc::ByteBuffer& request) {
    response_.Clear();
    grpc::ClientContext context;
    const grpc::internal::RpcMethod method(kPath, grpc::internal::RpcMethod::NORMAL_RPC);
    const auto start = std::chrono::steady_clock::now();
    const grpc::Status status =
        grpc::internal::BlockingUnaryCall(channel_.get(), method, &context, request, &response_);
    const auto end = std::chrono::steady_clock::now();
    if (!status.ok() || response_.Length() < kSize * kSize * 2) {
      std::fprintf(stderr, "road_bench: %s\n", status.error_message().c_str());
      std::exit(1);
    }
    return std::chrono::duration<double, std::milli>(end - start).count();
  }
  // The same of a stream of equal bytes.
  double CallAsStream(const std::vector<grpc::ByteBuffer>& messages) {
    const auto start = std::chrono::steady_clock::now();
    const StreamAnswer answer = CallStream(channel_, messages, kSize * kSize * 2);
    const auto end = std::chrono::steady_clock::now();
    if (!answer.status.ok()) {
      std::fprintf(stderr, "road_bench: %s\n", answer.status.error_message().c_str());
      std::exit(1);
    }
    return std::chrono::duration<double, std::milli>(end - start).count();
  }
  // What the server says about the last call.
  v1::Timings LastTimings() const {
    std::vector<grpc::Slice> slices;
    v1::MatmulResponse header;
    if (!response_.Dump(&slices).ok()) return {};
    std::string bytes;
    for (const grpc::Slice& slice : slices) {
      bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
    }
    return header.ParseFromString(bytes) ? header.timings() : v1::Timings();
  }

 private:
  grpc::ByteBuffer response_;
  std::shared_ptr<grpc::Channel> channel_;
};

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

struct Arguments {
  int rounds = 40;
  bool tcp = false;
  size_t chunk_bytes = size_t{1} << 20;
};

int Main(const Arguments& arguments) {
  const int rounds = arguments.rounds;
  const bool tcp = arguments.tcp;
  char folder[] = "/tmp/tcgemm-road-XXXXXX";
  if (mkdtemp(folder) == nullptr) return 1;
  const auto address = [&](const char* name) {
    return tcp ? std::string("127.0.0.1:0") : std::string("unix:") + folder + "/" + name;
  };
  // Before any gRPC in this process: a fork of a process with its threads would be broken.
  const Child ours = StartChild([&](int fd) { ServeTcgemm(address("ours"), fd); });
  const Child echo = StartChild([&](int fd) { ServeEcho(address("echo"), fd); });
  TuneAllocator();
  std::vector<double> ours_ms;
  std::vector<double> stream_ms;
  std::vector<double> echo_ms;
  std::vector<double> receive_ms;
  std::vector<double> decode_ms;
  {
    const grpc::ByteBuffer request = MakeRandomRequest(kSize);
    const std::vector<grpc::ByteBuffer> messages = MakeRandomStream(kSize, arguments.chunk_bytes);
    Caller64 to_ours(ours.address);
    Caller64 stream_to_ours(ours.address);
    Caller64 to_echo(echo.address);
    for (int round = -3; round < rounds; ++round) {
      const double a = to_ours.Call(request);
      const double b = to_echo.Call(request);
      const double c = stream_to_ours.CallAsStream(messages);
      if (round < 0) continue;  // warm-up
      const v1::Timings timings = to_ours.LastTimings();
      receive_ms.push_back(static_cast<double>(timings.receive_ns()) / 1e6);
      decode_ms.push_back(static_cast<double>(timings.decode_ns()) / 1e6);
      ours_ms.push_back(a);
      echo_ms.push_back(b);
      stream_ms.push_back(c);
    }
  }
  kill(ours.pid, SIGKILL);
  kill(echo.pid, SIGKILL);
  rusage usage{};
  wait4(ours.pid, nullptr, 0, &usage);
  waitpid(echo.pid, nullptr, 0);
  for (const char* name : {"/ours", "/echo"}) unlink((std::string(folder) + name).c_str());
  rmdir(folder);
  const double gbytes = 96.0 * 1048576 / 1e9;
  const nlohmann::json report = {
      {"transport", tcp ? "tcp" : "unix"},
      {"rounds", rounds},
      {"ours_ms", Median(ours_ms)},
      {"echo_ms", Median(echo_ms)},
      {"ours_receive_ms", Median(receive_ms)},
      {"ours_decode_ms", Median(decode_ms)},
      {"ours_gbytes_per_s", gbytes / Median(ours_ms) * 1e3},
      {"echo_gbytes_per_s", gbytes / Median(echo_ms) * 1e3},
      {"ratio", Median(echo_ms) / Median(ours_ms)},
      {"stream_ms", Median(stream_ms)},
      {"stream_chunk_bytes", arguments.chunk_bytes},
      {"stream_ratio", Median(echo_ms) / Median(stream_ms)},
      {"ours_minor_faults_per_call",
       static_cast<double>(usage.ru_minflt) / static_cast<double>(rounds + 3)}};
  std::printf("%s\n", report.dump().c_str());
  return 0;
}

}  // namespace
}  // namespace tcgemm

int main(int argc, char** argv) {
  tcgemm::Arguments arguments;
  for (int i = 1; i < argc; ++i) {
    const std::string_view arg = argv[i];
    if (arg == "--tcp") {
      arguments.tcp = true;
    } else if (arg == "--rounds" && i + 1 < argc) {
      arguments.rounds = std::max(1, std::atoi(argv[++i]));
    } else if (arg == "--chunk" && i + 1 < argc) {
      arguments.chunk_bytes = static_cast<size_t>(std::max(1, std::atoi(argv[++i])));
    } else {
      std::fprintf(stderr, "usage: road_bench [--rounds N] [--tcp] [--chunk BYTES]\n");
      return 2;
    }
  }
  return tcgemm::Main(arguments);
}
