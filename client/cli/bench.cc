#include "client/cli/bench.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "client/advice.h"
#include "client/cli/bench_product.h"
#include "client/cli/bench_region.h"
#include "client/cli/check.h"
#include "client/duration.h"
#include "client/streaming_client.h"
#include "matrix/matrix.h"

namespace tcgemm::client {
namespace {

constexpr int kMaxClients = 1024;
constexpr double kMaxRate = 1e6;
constexpr Nanos kDefaultDuration = std::chrono::seconds(10);

ArrivalOptions ArrivalsOf(const BenchOptions& options) {
  const bool endless = options.duration == Nanos(0) && options.requests == 0;
  return {.rate = options.rate,
          .duration = endless ? kDefaultDuration : options.duration,
          .requests = options.requests};
}

DType OutputOf(const BenchOptions& options) {
  return options.output == "fp32" ? DType::kFp32 : DType::kBf16;
}

absl::Status CheckNumbers(const BenchOptions& options) {
  if (options.clients < 1 || options.clients > kMaxClients) {
    return absl::InvalidArgumentError(
        absl::StrCat("--clients ", options.clients, " must be 1 to ", kMaxClients));
  }
  if (options.connections < 0 || options.connections > options.clients) {
    return absl::InvalidArgumentError(absl::StrCat("--connections ", options.connections,
                                                   " must be 1 to --clients ", options.clients));
  }
  if (!(options.rate >= 0 && options.rate <= kMaxRate)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--rate ", options.rate, " must be above 0 and at most ", kMaxRate));
  }
  if (options.requests < 0) {
    return absl::InvalidArgumentError(absl::StrCat("--requests ", options.requests, " is below 0"));
  }
  return absl::OkStatus();
}

// A call holds gRPC's copies of A, B and D beside its own D; in shared memory, D alone, and all
// have one A and B, beside their originals.
absl::Status CheckMemory(const ProductShape& shape, DType output, const BenchOptions& options) {
  constexpr double kShare = 0.75;
  constexpr double kGiB = 1 << 30;
  const double machine =
      static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
  const double operands = 2.0 * static_cast<double>(shape.k) *
                          (static_cast<double>(shape.m) + static_cast<double>(shape.n));
  const double result = static_cast<double>(shape.m) * static_cast<double>(shape.n) *
                        static_cast<double>(DTypeSize(output));
  const int clients = options.clients;
  const double needed =
      options.shared_memory ? 2 * operands + clients * result : clients * (operands + 2 * result);
  if (needed <= kShare * machine) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat(
      "--clients %d with this --shape take %.1f GiB here, more than %g of this machine's %.1f GiB",
      clients, needed / kGiB, kShare, machine / kGiB));
}

// What one client keeps from call to call.
struct ClientState {
  Matrix d;
  bool has_result = false;
};

// The calls of one bench: the same operands, a result buffer for each client.
class UnaryProduct final : public BenchProduct {
 public:
  UnaryProduct(const std::vector<std::unique_ptr<Client>>& connections, const BenchOptions& options,
               const ProductShape& shape, DType output, Nanos timeout)
      : connections_(connections),
        output_(output),
        call_options_{.timeout = timeout, .retry = false},
        a_(RandomOperand(shape.m, shape.k, options.transpose_a, options.seed)),
        b_(RandomOperand(shape.k, shape.n, options.transpose_b, options.seed + 1)),
        a_view_(options.transpose_a ? a_.transposed_view() : a_.view()),
        b_view_(options.transpose_b ? b_.transposed_view() : b_.view()),
        states_(static_cast<size_t>(options.clients)) {
    for (ClientState& state : states_) {
      state.d.Reshape(shape.m, shape.n, output);
      FillBytes(state.d, 0xff);  // its pages are there before the first call
    }
  }

  CallOutcome Call(int client) override {
    const auto index = static_cast<size_t>(client);
    ClientState& state = states_[index];
    const absl::StatusOr<MatmulInfo> info = connections_[index % connections_.size()]->Matmul(
        a_view_, b_view_, output_, state.d, call_options_);
    if (!info.ok()) return {.status = info.status()};
    state.has_result = true;
    return {.info = *info};
  }

  absl::StatusOr<std::optional<Proof>> ProveOne() const override {
    const auto state = std::find_if(states_.begin(), states_.end(),
                                    [](const ClientState& s) { return s.has_result; });
    if (state == states_.end()) return std::nullopt;
    TCGEMM_ASSIGN_OR_RETURN(Proof proof, Prove(a_view_, b_view_, state->d.view()));
    return proof;
  }

 private:
  const std::vector<std::unique_ptr<Client>>& connections_;
  const DType output_;
  const CallOptions call_options_;
  const Matrix a_;
  const Matrix b_;
  const MatrixView a_view_;
  const MatrixView b_view_;
  std::vector<ClientState> states_;
};

// A line that is written over, ten times a second; nothing where nobody watches.
class ProgressLine {
 public:
  explicit ProgressLine(const ArrivalOptions& arrivals)
      : arrivals_(arrivals), watched_(isatty(STDERR_FILENO) == 1) {}
  ~ProgressLine() {
    if (shown_) std::fprintf(stderr, "\r\033[K");
  }

  void Show(const LoadReport& report) {
    constexpr Nanos kInterval = std::chrono::milliseconds(100);
    if (!watched_ || (shown_ && report.elapsed - last_ < kInterval)) return;
    shown_ = true;
    last_ = report.elapsed;
    const double seconds = std::chrono::duration<double>(report.elapsed).count();
    double share = 0;
    if (arrivals_.duration > Nanos(0)) {
      share = seconds / std::chrono::duration<double>(arrivals_.duration).count();
    }
    if (arrivals_.requests > 0) {
      share = std::max(share,
                       static_cast<double>(report.sent) / static_cast<double>(arrivals_.requests));
    }
    std::fprintf(stderr, "\r%3.0f %%  %.1f s  %lld answered, %lld failed  p50 %s\033[K",
                 100 * std::min(share, 1.0), seconds, static_cast<long long>(report.succeeded),
                 static_cast<long long>(report.sent - report.succeeded),
                 FormatDuration(report.latency.Percentile(50)).c_str());
  }

 private:
  const ArrivalOptions arrivals_;
  const bool watched_;
  bool shown_ = false;
  Nanos last_{0};
};

void Complain(absl::string_view text) {
  std::fprintf(stderr, "tcgemm-client: %.*s\n", static_cast<int>(text.size()), text.data());
}

absl::StatusOr<std::vector<std::unique_ptr<Client>>> Connect(const GlobalOptions& global,
                                                             const BenchOptions& options,
                                                             int count) {
  std::vector<std::unique_ptr<Client>> connections;
  for (int i = 0; i < count; ++i) {
    const auto create = options.path == "stream" ? CreateStreamingClient : Client::Create;
    TCGEMM_ASSIGN_OR_RETURN(std::unique_ptr<Client> client,
                            create(global.Connection(options.lanes)));
    connections.push_back(std::move(client));
  }
  return connections;
}

struct BenchWay {
  std::string path;
  size_t connections = 0;
};

// Warms up, runs the load, proves one result. The options were checked.
absl::StatusOr<BenchReport> Repeat(BenchProduct& product, const BenchOptions& options,
                                   const BenchWay& way,
                                   const std::function<void(const LoadReport&)>& on_progress) {
  const auto call = [&product](int client) { return product.Call(client); };
  const LoadOptions load = {.arrivals = ArrivalsOf(options), .clients = options.clients};
  BenchReport report = {
      .layout = absl::StrCat(options.transpose_a ? "T" : "N", options.transpose_b ? "T" : "N"),
      .output = OutputOf(options),
      .path = way.path,
      .clients = options.clients,
      .connections = static_cast<int>(way.connections),
      .rate = options.rate};
  TCGEMM_ASSIGN_OR_RETURN(report.shape, ParseShape("--shape", options.shape));
  if (options.warmup > Nanos(0)) {
    const LoadOptions warmup = {.arrivals = {.rate = options.rate, .duration = options.warmup},
                                .clients = options.clients};
    report.warmup_requests = RunLoad(warmup, RealLoadEnvironment(), call, {}).sent;
  }
  report.load = RunLoad(load, RealLoadEnvironment(), call, on_progress);
  TCGEMM_ASSIGN_OR_RETURN(report.proof, product.ProveOne());
  return report;
}

}  // namespace

absl::Status CheckBenchOptions(const BenchOptions& options) {
  TCGEMM_RETURN_IF_ERROR(CheckNumbers(options));
  TCGEMM_ASSIGN_OR_RETURN(const ProductShape shape, ParseShape("--shape", options.shape));
  return CheckMemory(shape, OutputOf(options), options);
}

absl::StatusOr<BenchReport> Bench(const std::vector<std::unique_ptr<Client>>& connections,
                                  const BenchOptions& options, Nanos timeout,
                                  const std::function<void(const LoadReport&)>& on_progress) {
  TCGEMM_RETURN_IF_ERROR(CheckBenchOptions(options));
  TCGEMM_ASSIGN_OR_RETURN(const ProductShape shape, ParseShape("--shape", options.shape));
  UnaryProduct product(connections, options, shape, OutputOf(options), timeout);
  return Repeat(product, options, {.path = options.path, .connections = connections.size()},
                on_progress);
}

absl::StatusOr<BenchReport> BenchSharedMemory(
    const ClientOptions& server, const BenchOptions& options, Nanos timeout,
    const std::function<void(const LoadReport&)>& on_progress) {
  TCGEMM_RETURN_IF_ERROR(CheckBenchOptions(options));
  TCGEMM_ASSIGN_OR_RETURN(const ProductShape shape, ParseShape("--shape", options.shape));
  const int connections = options.connections > 0 ? options.connections : options.clients;
  TCGEMM_ASSIGN_OR_RETURN(const std::unique_ptr<BenchProduct> product,
                          CreateRegionProduct({.server = server,
                                               .shape = shape,
                                               .output = OutputOf(options),
                                               .transpose_a = options.transpose_a,
                                               .transpose_b = options.transpose_b,
                                               .resident = options.resident,
                                               .clients = options.clients,
                                               .connections = connections,
                                               .seed = options.seed,
                                               .timeout = timeout}));
  return Repeat(*product, options,
                {.path = options.resident ? "shared_memory_resident" : "shared_memory",
                 .connections = static_cast<size_t>(connections)},
                on_progress);
}

ExitCode RunBench(const GlobalOptions& global, const BenchOptions& options) {
  if (const absl::Status fit = CheckBenchOptions(options); !fit.ok()) {
    Complain(fit.message());
    return ExitCode::kUsage;
  }
  // Shared memory has connections of its own: this one asks what the server is.
  const int count = options.shared_memory     ? 1
                    : options.connections > 0 ? options.connections
                                              : options.clients;
  const auto connections = Connect(global, options, count);
  if (!connections.ok()) {
    Complain(connections.status().message());
    return ExitCode::kUsage;
  }
  AdviceContext advice = {.server = global.server, .timeout = global.timeout};
  absl::StatusOr<ServerInfo> info;
  // On each, so that no measured call has to connect first.
  for (const std::unique_ptr<Client>& connection : *connections) {
    info = connection->GetServerInfo({.timeout = global.timeout});
    if (ExitCodeOf(info.status()) != ExitCode::kUnreachable) continue;
    Complain(Explain(info.status(), advice));
    return ExitCode::kUnreachable;
  }
  absl::StatusOr<BenchReport> report;
  {
    ProgressLine progress(ArrivalsOf(options));
    const auto show = [&progress](const LoadReport& so_far) { progress.Show(so_far); };
    report = options.shared_memory
                 ? BenchSharedMemory(global.Connection(), options, global.timeout, show)
                 : Bench(*connections, options, global.timeout, show);
  }
  if (!report.ok()) {
    if (!options.shared_memory || absl::IsInvalidArgument(report.status())) {
      Complain(report.status().message());
      return ExitCode::kUsage;
    }
    Complain(Explain(report.status(), advice));
    return ExitCodeOf(report.status());
  }
  report->server = global.server;
  if (info.ok()) {
    report->device = info->device;
    advice.max_message_bytes = info->max_message_bytes;
  }
  std::printf("%s\n", (global.json ? BenchJson(*report) : BenchTable(*report)).c_str());
  if (!report->load.last_failure.ok()) {
    Complain(absl::StrCat("the last failure: ", Explain(report->load.last_failure, advice)));
  }
  return report->exit_code();
}

}  // namespace tcgemm::client
