#include "server/main/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "server/engine/memory_limit.h"
#include "server/main/addresses.h"
#include "server/main/config_file.h"
#include "server/main/flag_table.h"
#include "server/main/options_security.h"
#include "server/main/version.h"
#include "server/security/read_file.h"

namespace tcgemm {
namespace {

constexpr int kUsageError = 2;

void AddServingFlags(FlagTable& flags, ServerOptions& o) {
  flags.AddList("listen", &o.listen, "HOST:PORT or unix:/path to serve gRPC on; repeatable");
  flags.Add("metrics-listen", &o.metrics_listen,
            "HOST:PORT of the status page, /metrics, /healthz and /readyz");
  flags.Add("device", &o.device, "auto, cpu, cuda or cuda:N");
  flags.AddChoice("cpu-backend", &o.cpu_backend, {"auto", "onednn", "plain"},
                  "what multiplies on the CPU");
  flags.AddNumber("cpu-threads", &o.cpu_threads, 0, 4096,
                  "threads of the CPU backend; 0: the cores that the process may use");
  flags.AddNumber("max-batch", &o.max_batch, 1, 1024, "requests in one launch");
  flags.AddNumber<int64_t>("max-queue-delay-us", &o.max_queue_delay_us, 0, 60'000'000,
                           "how long a request may wait for company, in microseconds");
  flags.AddChoice("log-level", &o.log_level, {"debug", "info", "warning", "error"},
                  "least severe line to log");
  flags.AddChoice("log-format", &o.log_format, {"text", "json"}, "how to log, on stderr");
}

void AddLimitFlags(FlagTable& flags, ServerOptions& o) {
  flags.AddNumber("max-inflight", &o.max_inflight, 1, 1'000'000, "Matmul calls under way");
  flags.AddBytes("max-message-bytes", &o.max_message_bytes, "largest request message, ≤ 2GiB");
  flags.AddBytes("pinned-bytes", &o.pinned_bytes,
                 "memory for operands and results, allocated at start; 0: a share of the machine");
  flags.AddBytes(
      "device-bytes", &o.device_bytes,
      "device memory of the batches in flight (GPU); 0: each has room for --pinned-bytes, "
      "at most 2GiB");
  flags.AddBytes("queue-bytes", &o.queue_bytes,
                 "payloads being received at once; 0: a share of the machine");
  flags.AddBytes("resident-bytes", &o.resident_bytes,
                 "memory of matrices that stay on the server: the GPU's, or the host's on the CPU; "
                 "0: none stays; not given: a share of the machine's memory, at most 1GiB");
  flags.AddBytes("resident-bytes-per-caller", &o.resident_bytes_per_caller,
                 "how much of --resident-bytes one caller may hold; 0: all of it");
  flags.AddList("preload", &o.preload,
                "NAME=FILE: a .npy or .safetensors file (FILE.safetensors:TENSOR where it holds "
                "several) that everybody may use as the resident matrix NAME; repeatable");
  flags.AddFlag("allow-shared-memory", &o.allow_shared_memory,
                "callers on a unix socket may share memory with the server: operands and results "
                "in it are not copied");
  flags.AddBytes("shared-memory-bytes", &o.shared_memory_bytes,
                 "of all shared memory; 0: a share of the machine");
  flags.AddBytes("shared-memory-caller-bytes", &o.shared_memory_caller_bytes,
                 "of one caller's shared memory; 0: all of it");
  flags.AddNumber("decode-threads", &o.decode_threads, 0, 256,
                  "threads that copy large operands and hand out large results; 0: half of the "
                  "cores, 2 to 8");
  constexpr Nanos kNone{0};
  // A call that may take no time at all could never succeed.
  constexpr Nanos kSome = std::chrono::milliseconds(1);
  flags.AddDuration("admission-wait", &o.admission_wait, kNone,
                    "how long a call waits for room to receive before it is refused");
  flags.AddDuration("receive-timeout", &o.receive_timeout, kSome,
                    "a payload must arrive within this");
  flags.AddDuration("send-timeout", &o.send_timeout, kSome, "a result must be read within this");
  flags.AddDuration("slow-request", &o.slow_request, kNone,
                    "/debug/requests keeps calls that took longer");
  flags.AddBytes("small-batch-bytes", &o.small_batch_bytes,
                 "batches of at most this stay in host memory, where the GPU reads them; 0: none");
  flags.AddDuration("watchdog-min", &o.watchdog_min, kSome,
                    "a batch may take this or 50 times what it should, the longer, before the GPU "
                    "counts as hung: exit code 7");
  flags.AddDuration("drain-delay", &o.drain_delay, kNone,
                    "after SIGTERM: still accept for this long while health says NOT_SERVING");
  flags.AddDuration("drain-timeout", &o.drain_timeout, kNone,
                    "after that: how long admitted calls may take");
}

// Flags from the environment, for those that the command line does not have.
std::vector<std::string> WithEnvironment(const std::vector<std::string>& args,
                                         const std::vector<std::string>& names,
                                         const Environment& environment) {
  std::vector<std::string> all = args;
  for (const std::string& name : names) {
    const std::string flag = "--" + name;
    const bool given = std::any_of(args.begin(), args.end(), [&](const std::string& arg) {
      return arg == flag || arg.rfind(flag + "=", 0) == 0;
    });
    if (given) continue;
    const std::string variable =
        "TCGEMM_" + absl::AsciiStrToUpper(absl::StrReplaceAll(name, {{"-", "_"}}));
    const std::optional<std::string> value = environment(variable);
    if (value.has_value() && !value->empty()) all.push_back(flag + "=" + *value);
  }
  return all;
}

// "--flag=" would be true for CLI11.
std::string FindEmptyBoolean(const std::vector<std::string>& args, const FlagTable& flags) {
  for (const std::string& name : flags.kinds().booleans) {
    const std::string empty = absl::StrCat("--", name, "=");
    if (std::find(args.begin(), args.end(), empty) != args.end()) {
      return absl::StrCat("--", name, " is empty, must be true or false");
    }
  }
  return "";
}

// Against what the machine has; what is free now is looked at when the server starts.
std::string CheckMemory(const ServerOptions& o, uint64_t memory_limit_bytes) {
  if (memory_limit_bytes == 0) return "";
  const absl::Status fits = CheckMemoryBudgets(
      HostBudgets(o), {.bytes = memory_limit_bytes,
                       .source = "the memory limit of the machine or the container",
                       .available_bytes = memory_limit_bytes});
  return std::string(fits.message());
}

std::string CheckSharedMemory(const ServerOptions& o) {
  if (!o.allow_shared_memory) return "";
  const bool has_unix = std::any_of(o.listen.begin(), o.listen.end(), [](const std::string& at) {
    return at.rfind("unix:", 0) == 0;
  });
  if (!has_unix) return "--allow-shared-memory needs a --listen unix:/path: memory is shared there";
  if (o.shared_memory_caller_bytes > o.shared_memory_bytes) {
    return absl::StrCat("--shared-memory-caller-bytes is ", o.shared_memory_caller_bytes,
                        ", must be at most --shared-memory-bytes, ", o.shared_memory_bytes);
  }
  return "";
}

// What single checks cannot see; empty when all is well.
std::string CheckTogether(const ServerOptions& o) {
  const auto two_gib = static_cast<uint64_t>(std::numeric_limits<int32_t>::max());
  if (o.max_message_bytes < 1024 || o.max_message_bytes > two_gib) {
    return absl::StrCat("--max-message-bytes is ", o.max_message_bytes, ", must be from 1024 to ",
                        two_gib);
  }
  if (o.queue_bytes < o.max_message_bytes) {
    return absl::StrCat("--queue-bytes is ", o.queue_bytes,
                        ", must hold at least one message: --max-message-bytes is ",
                        o.max_message_bytes);
  }
  if (o.resident_bytes > 0 && o.resident_bytes_per_caller > o.resident_bytes) {
    return absl::StrCat("--resident-bytes-per-caller is ", o.resident_bytes_per_caller,
                        ", must be at most --resident-bytes, ", o.resident_bytes);
  }
  if (o.pinned_bytes < 4096) {
    return absl::StrCat("--pinned-bytes is ", o.pinned_bytes, ", must be at least 4096");
  }
  for (const std::string& preload : o.preload) {
    const size_t equals = preload.find('=');
    if (equals == std::string::npos || equals == 0 || equals + 1 == preload.size()) {
      return absl::StrCat("--preload '", absl::CEscape(preload), "' must be NAME=FILE");
    }
    if (!FitsToml(preload)) {
      return absl::StrCat("--preload '", absl::CEscape(preload),
                          "' must not hold quotes, backslashes, '#' or control characters");
    }
  }
  const bool cuda_n = o.device.rfind("cuda:", 0) == 0 && o.device.size() > 5 &&
                      o.device.find_first_not_of("0123456789", 5) == std::string::npos;
  if (o.device != "auto" && o.device != "cpu" && o.device != "cuda" && !cuda_n) {
    return absl::StrCat("--device is '", absl::CEscape(o.device),
                        "', must be auto, cpu, cuda or cuda:N");
  }
  return "";
}

void ChooseBudgets(ServerOptions& options, uint64_t memory_limit_bytes, bool chose_residents) {
  const DefaultBudgets defaults = ChooseDefaultBudgets(memory_limit_bytes);
  if (options.pinned_bytes == 0) options.pinned_bytes = defaults.pinned_bytes;
  if (options.queue_bytes == 0) {
    options.queue_bytes = std::max<uint64_t>(defaults.receive_bytes, options.max_message_bytes);
  }
  if (options.allow_shared_memory && options.shared_memory_bytes == 0) {
    options.shared_memory_bytes = defaults.pinned_bytes;
  }
  if (chose_residents) return;
  options.resident_bytes =
      ChooseDefaultResidentBytes(memory_limit_bytes, HostBudgets(options, ResidentMemory::kDevice));
}

CommandLine UsageError(const std::string& message) {
  return {.exit_code = kUsageError, .text = absl::StrCat("tcgemm-server: error: ", message, "\n")};
}

}  // namespace

// CLI11's TOML has no escapes, and takes '#' for a comment even inside quotes.
bool FitsToml(const std::string& text) {
  return std::none_of(text.begin(), text.end(), [](char c) {
    return absl::ascii_iscntrl(static_cast<unsigned char>(c)) || c == '"' || c == '\\' || c == '#';
  });
}

std::vector<PreloadFile> ParsePreload(const ServerOptions& options) {
  std::vector<PreloadFile> files;
  for (const std::string& preload : options.preload) {
    const size_t equals = preload.find('=');
    files.push_back({preload.substr(0, equals), preload.substr(equals + 1)});
  }
  return files;
}

uint64_t SharedMemoryBytes(const ServerOptions& options) {
  return options.allow_shared_memory ? options.shared_memory_bytes : 0;
}

std::vector<MemoryBudget> HostBudgets(const ServerOptions& options, ResidentMemory residents) {
  const bool on_host = residents == ResidentMemory::kHost;
  return {{.name = "--pinned-bytes", .bytes = options.pinned_bytes},
          {.name = "--queue-bytes", .bytes = options.queue_bytes},
          {.name = "--resident-bytes", .bytes = on_host ? options.resident_bytes : 0},
          {.name = "--shared-memory-bytes", .bytes = SharedMemoryBytes(options)}};
}

std::vector<MemoryBudget> HostBudgets(const ServerOptions& options) {
  return HostBudgets(options,
                     options.device == "cpu" ? ResidentMemory::kHost : ResidentMemory::kDevice);
}

CommandLine ParseCommandLine(const std::vector<std::string>& args, const Environment& environment,
                             uint64_t memory_limit_bytes) {
  CommandLine result;
  ServerOptions& options = result.options;
  CLI::App app("Serves matrix products over gRPC.", "tcgemm-server");
  FlagTable flags(&app);
  AddServingFlags(flags, options);
  AddLimitFlags(flags, options);
  AddSecurityFlags(flags, options);
  app.config_formatter(std::make_shared<ConfigFile>(flags.kinds(), &result.config_keys));
  app.set_config("--config", "", "TOML file with the flags above as keys")
      ->check(CLI::Validator([](const std::string& path) { return CheckRegularFile(path); }, ""));
  app.allow_config_extras(CLI::config_extras_mode::error);
  bool print_config = false;
  bool check_config = false;
  bool version = false;
  app.add_flag("--print-config", print_config, "print the resulting configuration and end")
      ->configurable(false);
  app.add_flag("--check-config", check_config, "check the configuration and end")
      ->configurable(false);
  app.add_flag("--version", version, "print the version and end")->configurable(false);
  app.footer("Every flag --a-b is also TCGEMM_A_B in the environment and a-b in the file.");

  std::vector<std::string> names = flags.names();
  names.push_back("config");
  std::vector<std::string> all = WithEnvironment(args, names, environment);
  if (const std::string empty = FindEmptyBoolean(args, flags); !empty.empty()) {
    return UsageError(empty);
  }
  std::reverse(all.begin(), all.end());  // CLI11 takes them from the back
  try {
    app.parse(all);
  } catch (const CLI::CallForHelp&) {
    return {.text = app.help()};
  } catch (const CLI::ParseError& error) {
    return UsageError(error.what());
  }
  if (version) {
    return {.text =
                absl::StrCat("tcgemm-server ", kVersion, " (commit ", kCommit, ", CUDA ",
                             kCuda[0] == '\0' ? "none" : kCuda, ", backends ", kBackends, ")\n")};
  }
  ChooseBudgets(options, memory_limit_bytes, app.count("--resident-bytes") > 0);
  for (const std::string& trouble :
       {CheckTogether(options), CheckAddresses(options), CheckSharedMemory(options),
        CheckSecurity(options), CheckMemory(options, memory_limit_bytes)}) {
    if (!trouble.empty()) return UsageError(trouble);
  }
  if (print_config) {
    result.text = ToToml(options);
    return result;
  }
  if (check_config) {
    result.text = "the configuration is good\n";
    return result;
  }
  result.serve = true;
  return result;
}

}  // namespace tcgemm
