#include "server/main/server.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/mutex.h"
#include "server/engine/cpu_limit.h"
#include "server/engine/engine.h"
#include "server/engine/memory_limit.h"
#include "server/engine/preload.h"
#include "server/engine/shared_region.h"
#include "server/http/http_server.h"
#include "server/http/metrics.h"
#include "server/main/addresses.h"
#include "server/main/engine_options.h"
#include "server/main/gpu_watch.h"
#include "server/main/logging.h"
#include "server/main/reload.h"
#include "server/main/server_security.h"
#include "server/main/signals.h"
#include "server/main/version.h"
#include "server/rpc/rpc_server.h"
#include "server/rpc/service_methods.h"

namespace tcgemm {
namespace {

// How often the drain looks for a signal while it waits for calls.
constexpr Nanos kDrainPoll = std::chrono::milliseconds(20);

// After the last admitted call the server goes on refusing for this long before it closes. Calls
// that meet gRPC's own shutdown end with CANCELLED, which no client retries; ours end with
// UNAVAILABLE, which sends clients elsewhere.
constexpr Nanos kRefusalLinger = std::chrono::milliseconds(100);

// What ends with a code other than 0 waits this long at most for its calls, and again for its
// sockets: a kernel that hangs must not keep the process.
constexpr Nanos kLastGrace = std::chrono::seconds(1);

// Whether the device was lost or has hung, and why. Thread-safe.
class FatalFlag {
 public:
  void Set(const FatalError& error) ABSL_LOCKS_EXCLUDED(mutex_) {
    {
      MutexLock lock(&mutex_);
      if (!error_.has_value()) error_ = error;
    }
    NotifyMainThread();
  }
  std::optional<FatalError> Get() const ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(&mutex_);
    return error_;
  }

 private:
  mutable Mutex mutex_;
  std::optional<FatalError> error_ ABSL_GUARDED_BY(mutex_);
};

class Server {
 public:
  Server(const ServerOptions& options, const DeviceFactory& create_device, OptionsSource source)
      : started_with_(options),
        options_(options),
        create_device_(create_device),
        source_(std::move(source)) {}
  ~Server();

  // The exit code, or kDrained (0) when it serves.
  int Start();
  // The device was lost or has hung: the process must end without its destructors, which may wait
  // for the device.
  bool fatal() const { return fatal_.Get().has_value(); }
  bool StopTelemetry() { return telemetry_ == nullptr || telemetry_->Stop(); }
  int ServeUntilDrained();

 private:
  enum class Event { kTimeout, kTerminate, kFatal };

  int Fail(int code, const absl::Status& status);
  // Whether the machine can give what the options ask for.
  int CheckBudgets(const std::vector<MemoryBudget>& budgets);
  int StartEngine(std::unique_ptr<Device> device);
  int StartFronts();
  absl::Status LoadMatrices();
  void SayReady();
  // SIGHUP: the options and the files again.
  void Reload();
  void Apply(const ServerOptions& next);
  // What comes first until `deadline`; the device's end before all else. Reloads in between.
  Event WaitForEvent(TimePoint deadline);
  int Drain();
  // Waits for calls; false when it gave up.
  bool WaitForCalls();
  void LogTotals();
  [[noreturn]] void EndWithFatalError();
  [[noreturn]] void EndNow(int code);

  const ServerOptions started_with_;
  ServerOptions options_;
  const DeviceFactory create_device_;
  const OptionsSource source_;
  FatalFlag fatal_;
  std::unique_ptr<Metrics> metrics_;
  std::unique_ptr<GpuTelemetry> telemetry_;  // null without a GPU
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<HttpServer> http_;
  std::unique_ptr<ServerSecurity> security_;
  std::unique_ptr<RpcServer> rpc_;
};

Server::~Server() {
  if (metrics_ != nullptr) {
    metrics_->WatchPool(nullptr);
    metrics_->WatchResidents(nullptr);
    metrics_->WatchRegions(nullptr);
    metrics_->WatchGpu(nullptr);
  }
  rpc_.reset();
  http_.reset();
  security_.reset();
  telemetry_.reset();
  engine_.reset();
}

int Server::Fail(int code, const absl::Status& status) {
  Log(LogLevel::kError, std::string(status.message()));
  return code;
}

int Server::CheckBudgets(const std::vector<MemoryBudget>& budgets) {
  const absl::StatusOr<MemoryLimit> limit = DetectMemoryLimit(RealFileReader());
  if (!limit.ok()) return Fail(kBadConfig, limit.status());
  const absl::Status fits = CheckMemoryBudgets(budgets, *limit);
  if (!fits.ok()) return Fail(kBadConfig, fits);
  if (!options_.allow_shared_memory) return kDrained;
  const absl::Status allowed = CheckSharedMemoryAllowed(RealFileReader());
  return allowed.ok() ? kDrained : Fail(kBadConfig, allowed);
}

int Server::StartEngine(std::unique_ptr<Device> device) {
  const DeviceInfo info = device->info();
  metrics_ = std::make_unique<Metrics>(MetricsOptions{.version = kVersion,
                                                      .commit = kCommit,
                                                      .cuda = kCuda,
                                                      .backend = info.backend,
                                                      .device = info.name,
                                                      .methods = ServiceMethods()});
  Log(LogLevel::kInfo, absl::StrCat("device ", info.name, ": ", info.description));
  EngineOptions engine = EngineOptionsOf(options_);
  engine.on_fatal = [this](const FatalError& error) { fatal_.Set(error); };
  absl::StatusOr<std::unique_ptr<Engine>> created =
      Engine::Create(engine, std::move(device), Clock::Real(), metrics_.get());
  if (!created.ok()) {
    const bool budgets =
        absl::IsInvalidArgument(created.status()) || absl::IsResourceExhausted(created.status());
    return Fail(budgets ? kBadConfig : kNoDevice, created.status());
  }
  engine_ = *std::move(created);
  metrics_->WatchPool(&engine_->host_pool());
  metrics_->WatchResidents(&engine_->residents());
  metrics_->WatchRegions(&engine_->regions());
  return kDrained;
}

int Server::StartFronts() {
  const auto code_of = [](const absl::Status& status) {
    return absl::IsInvalidArgument(status) ? kBadConfig : kCannotBind;
  };
  auto security = ServerSecurity::Create(options_, metrics_.get());
  if (!security.ok()) return Fail(kBadConfig, security.status());
  security_ = *std::move(security);
  auto http =
      HttpServer::Start(options_.metrics_listen, metrics_.get(), security_->notable_calls());
  if (!http.ok()) return Fail(code_of(http.status()), http.status());
  http_ = *std::move(http);
  RpcOptions rpc;
  rpc.listen = options_.listen;
  rpc.max_message_bytes = static_cast<int64_t>(options_.max_message_bytes);
  rpc.receive_bytes = static_cast<int64_t>(options_.queue_bytes);
  rpc.max_inflight = options_.max_inflight;
  rpc.admission_wait = options_.admission_wait;
  rpc.receive_timeout = options_.receive_timeout;
  rpc.send_timeout = options_.send_timeout;
  rpc.decode_threads = options_.decode_threads > 0
                           ? options_.decode_threads
                           : DefaultDecodeThreads(UsableCores(RealFileReader()));
  security_->Configure(options_, rpc);
  rpc.log_warning = [](const std::string& line) { Log(LogLevel::kWarning, line); };
  rpc.version = kVersion;
  rpc.commit = kCommit;
  rpc.cuda = kCuda;
  for (const KernelId kernel : engine_->kernels()) {
    rpc.kernels.push_back(std::string(KernelName(kernel)));
  }
  auto server = RpcServer::Start(rpc, engine_.get(), Clock::Real(), metrics_.get());
  if (!server.ok()) return Fail(code_of(server.status()), server.status());
  rpc_ = *std::move(server);
  return kDrained;
}

int Server::Start() {
  if (const absl::Status found = ResolveAddresses(options_); !found.ok()) {
    return Fail(kBadConfig, found);
  }
  if (const int code = CheckBudgets(HostBudgets(options_)); code != kDrained) return code;
  absl::StatusOr<std::unique_ptr<Device>> device = create_device_(options_);
  if (!device.ok()) {
    return Fail(absl::IsInvalidArgument(device.status()) ? kBadConfig : kNoDevice, device.status());
  }
  if ((*device)->info().unified_memory) {  // --device auto may have become the CPU
    const auto budgets = HostBudgets(options_, ResidentMemory::kHost);
    if (const int code = CheckBudgets(budgets); code != kDrained) return code;
  }
  if (const int code = StartEngine(*std::move(device)); code != kDrained) return code;
  if (const int code = StartFronts(); code != kDrained) return code;
  const absl::Status tested = engine_->SelfTest();
  if (!tested.ok()) {
    return Fail(kNoDevice, absl::InternalError(
                               absl::StrCat("the self-test of device ", engine_->device_info().name,
                                            " failed: ", std::string(tested.message()))));
  }
  if (const absl::Status loaded = LoadMatrices(); !loaded.ok()) return Fail(kBadConfig, loaded);
  telemetry_ = StartGpuTelemetry(engine_->device_info());
  metrics_->WatchGpu(telemetry_.get());
  metrics_->StartCounting();
  SayReady();
  return kDrained;
}

absl::Status Server::LoadMatrices() {
  for (const PreloadFile& file : ParsePreload(options_)) {
    const absl::Status loaded = PreloadMatrix(*engine_, file.name, file.path);
    if (!loaded.ok()) {
      return absl::Status(loaded.code(), absl::StrCat("--preload ", file.name, "=", file.path, ": ",
                                                      std::string(loaded.message())));
    }
    Log(LogLevel::kInfo, absl::StrCat("preloaded ", file.name, " from ", file.path));
  }
  return absl::OkStatus();
}

void Server::SayReady() {
  rpc_->SetServing(true);
  metrics_->SetReady(true);
  const std::string ready =
      absl::StrCat("READY grpc=", absl::StrJoin(rpc_->addresses(), ","),
                   " metrics=", http_->address(), " device=", engine_->device_info().name);
  std::printf("%s\n", ready.c_str());
  std::fflush(stdout);
}

Server::Event Server::WaitForEvent(TimePoint deadline) {
  while (true) {
    const Wake wake = WaitForSignal(deadline);
    if (fatal_.Get().has_value()) return Event::kFatal;
    if (wake == Wake::kTerminate) return Event::kTerminate;
    if (wake == Wake::kTimeout) return Event::kTimeout;
    if (wake == Wake::kReload) Reload();
    // Notified, but not by us: a stray SIGUSR1 is no reason to do anything.
  }
}

void Server::Apply(const ServerOptions& next) {
  SetLogLevel(next.log_level);
  const absl::Status batching =
      engine_->SetBatching({.max_batch = next.max_batch,
                            .max_queue_delay = std::chrono::microseconds(next.max_queue_delay_us)});
  if (!batching.ok()) Log(LogLevel::kError, std::string(batching.message()));
  engine_->residents().SetBytesPerCaller(next.resident_bytes_per_caller);
  rpc_->SetCallerLimits(CallerLimitsOf(next));
  options_ = next;
}

void Server::Reload() {
  if (source_ == nullptr) return;
  const CommandLine line = source_();
  if (!line.serve) {
    Log(LogLevel::kError, absl::StrCat("SIGHUP: nothing is changed: ",
                                       absl::StripTrailingAsciiWhitespace(line.text)));
    // Log rotation and new certificates do not wait for it.
    const std::vector<std::string> files = security_->Reload();
    if (!files.empty()) Log(LogLevel::kWarning, "SIGHUP: changed " + absl::StrJoin(files, ", "));
    return;
  }
  ReloadPlan plan = PlanReload(started_with_, options_, line.options);
  Apply(plan.options);
  for (std::string& files : security_->Reload()) plan.changed.push_back(std::move(files));
  const std::string changed = plan.changed.empty() ? "nothing" : absl::StrJoin(plan.changed, ", ");
  const std::string rest =
      plan.needs_restart.empty()
          ? ""
          : absl::StrCat("; needs a restart: ", absl::StrJoin(plan.needs_restart, ", "));
  Log(LogLevel::kWarning, absl::StrCat("SIGHUP: changed ", changed, rest));
}

int Server::ServeUntilDrained() {
  if (WaitForEvent(kInfiniteFuture) == Event::kFatal) EndWithFatalError();
  return Drain();
}

int Server::Drain() {
  Log(LogLevel::kInfo, "draining");
  metrics_->SetDraining(true);
  metrics_->SetReady(false);
  rpc_->SetServing(false);
  // A second signal skips the rest of the delay.
  if (options_.drain_delay > Nanos(0) &&
      WaitForEvent(Clock::Real()->Now() + options_.drain_delay) == Event::kFatal) {
    EndWithFatalError();
  }
  rpc_->RefuseNewCalls();
  if (!WaitForCalls()) {
    Log(LogLevel::kError, "the drain timed out: some calls did not end");
    EndNow(kDrainTimedOut);
  }
  engine_->Drain();
  rpc_->EndHeldCalls();  // no product needs its region any more
  if (WaitForEvent(Clock::Real()->Now() + kRefusalLinger) == Event::kFatal) EndWithFatalError();
  rpc_->Shutdown();
  LogTotals();
  return kDrained;
}

bool Server::WaitForCalls() {
  const TimePoint end = Clock::Real()->Now() + options_.drain_timeout;
  while (true) {
    const TimePoint now = Clock::Real()->Now();
    if (rpc_->WaitIdle(std::min(end, now + kDrainPoll))) return true;
    if (now >= end) return false;
    // One more signal ends the waiting.
    const Event event = WaitForEvent(now);
    if (event == Event::kFatal) EndWithFatalError();
    if (event == Event::kTerminate) return false;
  }
}

void Server::LogTotals() {
  const CallTotals totals = rpc_->totals();
  Log(LogLevel::kInfo,
      absl::StrCat("ended: admitted ", totals.admitted, ", completed ", totals.completed,
                   ", failed ", totals.failed, ", refused ", totals.started - totals.admitted));
}

void Server::EndWithFatalError() {
  metrics_->SetReady(false);
  rpc_->SetServing(false);
  const FatalError error = fatal_.Get().value_or(FatalError{});
  const bool hung = error.cause == FatalCause::kWatchdog;
  Log(LogLevel::kError, absl::StrCat(hung ? "the device hangs: " : "the device is lost: ",
                                     std::string(error.status.message())));
  // The engine has failed its jobs; their calls end before the sockets close.
  rpc_->RefuseNewCalls();
  rpc_->WaitIdle(Clock::Real()->Now() + kLastGrace);
  rpc_->EndHeldCalls();
  // As in a drain: statuses on their way, and callers that have not heard, meet us and not gRPC.
  std::this_thread::sleep_for(kRefusalLinger);
  EndNow(hung ? kKernelWatchdog : kDeviceLost);
}

void Server::EndNow(int code) {
  // Shutdown waits for every call, and so for a kernel that may never end.
  std::promise<void> closed;
  const std::future<void> is_closed = closed.get_future();
  std::thread([this, closed = std::move(closed)]() mutable {
    rpc_->Shutdown();
    closed.set_value();
  }).detach();
  is_closed.wait_for(kLastGrace);
  LogTotals();
  std::_Exit(code);
}

}  // namespace

int RunServer(const ServerOptions& options, const DeviceFactory& create_device,
              OptionsSource source) {
  auto server = std::make_unique<Server>(options, create_device, std::move(source));
  int code = server->Start();
  if (code != kDrained && server->fatal()) std::_Exit(code);
  if (code == kDrained) code = server->ServeUntilDrained();
  const bool all_ended = server->StopTelemetry();
  server.reset();
  if (!all_ended) std::_Exit(code);  // GpuTelemetry::Stop says why
  return code;
}

}  // namespace tcgemm
