// The server's flags, environment and config file. docs/OPERATIONS.md explains them.
//
// Every flag --a-b is also TCGEMM_A_B in the environment and a-b in the TOML file; a flag wins over
// the environment, which wins over the file.
#ifndef TCGEMM_SERVER_MAIN_OPTIONS_H_
#define TCGEMM_SERVER_MAIN_OPTIONS_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "server/engine/in_place.h"
#include "server/engine/memory_limit.h"
#include "server/main/units.h"

namespace tcgemm {

struct ServerOptions {
  std::vector<std::string> listen = {"127.0.0.1:50051"};
  std::string metrics_listen = "127.0.0.1:9464";
  std::string device = "auto";       // auto, cpu, cuda, cuda:N
  std::string cpu_backend = "auto";  // auto, onednn, plain
  int cpu_threads = 0;               // 0: the cores that this process may use
  int max_batch = 64;
  int64_t max_queue_delay_us = 0;
  int max_inflight = 1024;
  uint64_t max_message_bytes = (uint64_t{256} << 20) + (uint64_t{64} << 10);
  uint64_t pinned_bytes = 0;    // 0: a share of the machine's memory
  uint64_t device_bytes = 0;    // 0: as much as pinned_bytes for each batch in flight
  uint64_t queue_bytes = 0;     // 0: a share of the machine's memory
  uint64_t resident_bytes = 0;  // ParseCommandLine: a share of the memory, when not given
  uint64_t resident_bytes_per_caller = 0;  // at most resident_bytes; 0: all of them
  std::vector<std::string> preload;        // "NAME=FILE" each
  bool allow_shared_memory = false;
  uint64_t shared_memory_bytes = 0;         // 0: a share of the machine's memory
  uint64_t shared_memory_caller_bytes = 0;  // 0: as much as shared_memory_bytes
  int decode_threads = 0;                   // 0: DefaultDecodeThreads
  Nanos admission_wait = std::chrono::milliseconds(250);
  Nanos receive_timeout = std::chrono::seconds(30);
  Nanos send_timeout = std::chrono::seconds(30);
  uint64_t small_batch_bytes = kDefaultInPlaceBytes;
  Nanos watchdog_min = std::chrono::seconds(1);
  Nanos drain_delay{0};
  Nanos drain_timeout = std::chrono::seconds(30);
  std::string log_level = "info";    // debug, info, warning, error
  std::string log_format = "text";   // text, json
  std::string reflection = "auto";   // auto, on, off
  std::string debug_pages = "auto";  // auto, on, off
  Nanos slow_request = std::chrono::seconds(1);
  // Security; paths are empty where there is no file.
  std::string tls_cert;
  std::string tls_key;
  std::string tls_client_ca;
  std::string tls_client_auth = "require";  // require, request
  bool insecure_listen_any = false;
  std::string token_file;
  bool allow_plaintext_tokens = false;
  int max_inflight_per_caller = 0;      // 0: no limit
  uint64_t queue_bytes_per_caller = 0;  // 0: no limit
  std::string access_log = "off";       // a file, - or off
  Nanos max_connection_age{0};          // 0: for ever
  Nanos max_connection_age_grace{0};    // 0: as long as its calls take
  int max_concurrent_streams = 4096;
};

// What the command line asks for: to serve with `options`, or to print `text` and end with
// `exit_code`.
struct CommandLine {
  bool serve = false;
  ServerOptions options;
  int exit_code = 0;
  std::string text;                   // to stdout when exit_code is 0, else to stderr
  std::optional<size_t> config_keys;  // that the file of --config sets
};

// The value of an environment variable, or nothing.
using Environment = std::function<std::optional<std::string>(const std::string& name)>;

// `memory_limit_bytes` sizes the budgets that are 0 and bounds them all; 0 when it is not known.
// Exit code 2 for a usage or config error, with one line that names the flag, the value and the
// limit.
CommandLine ParseCommandLine(const std::vector<std::string>& args, const Environment& environment,
                             uint64_t memory_limit_bytes);

struct PreloadFile {
  std::string name;
  std::string path;
};
// Of options that ParseCommandLine accepted.
std::vector<PreloadFile> ParsePreload(const ServerOptions& options);

// What --allow-shared-memory lends out; 0 without it.
uint64_t SharedMemoryBytes(const ServerOptions& options);

// Where resident matrices lie: on a GPU they are in its own memory. kDevice also while it is not
// known yet what --device auto will be.
enum class ResidentMemory { kHost, kDevice };

// The host memory that these options may use, flag by flag, for CheckMemoryBudgets.
std::vector<MemoryBudget> HostBudgets(const ServerOptions& options, ResidentMemory residents);
// As far as --device says it.
std::vector<MemoryBudget> HostBudgets(const ServerOptions& options);

// TOML that reads back to the same options.
std::string ToToml(const ServerOptions& options);

}  // namespace tcgemm

#endif  // TCGEMM_SERVER_MAIN_OPTIONS_H_
