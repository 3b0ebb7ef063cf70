// The options as the file that --config would read.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/main/options.h"

namespace tcgemm {
namespace {

std::string Quoted(const std::string& text) { return absl::StrCat("\"", text, "\""); }

}  // namespace

std::string ToToml(const ServerOptions& o) {
  const auto ns = [](Nanos time) { return absl::StrCat("\"", time.count(), "ns\""); };
  std::vector<std::string> listen;
  for (const std::string& address : o.listen) listen.push_back(Quoted(address));
  // CLI11 does not read an empty list back, so that there is no line without one.
  std::vector<std::string> files;
  for (const std::string& file : o.preload) files.push_back(Quoted(file));
  const std::string preload =
      files.empty() ? "" : absl::StrCat("\npreload = [", absl::StrJoin(files, ", "), "]");
  return absl::StrCat(
      "listen = [", absl::StrJoin(listen, ", "), "]\nmetrics-listen = ", Quoted(o.metrics_listen),
      "\ndevice = ", Quoted(o.device), "\ncpu-backend = ", Quoted(o.cpu_backend),
      "\ncpu-threads = ", o.cpu_threads, "\nmax-batch = ", o.max_batch,
      "\nmax-queue-delay-us = ", o.max_queue_delay_us, "\nmax-inflight = ", o.max_inflight,
      "\nmax-message-bytes = ", o.max_message_bytes, "\npinned-bytes = ", o.pinned_bytes,
      "\ndevice-bytes = ", o.device_bytes, "\nqueue-bytes = ", o.queue_bytes,
      "\nresident-bytes = ", o.resident_bytes,
      "\nresident-bytes-per-caller = ", o.resident_bytes_per_caller, preload,
      "\nallow-shared-memory = ", o.allow_shared_memory ? "true" : "false",
      "\nshared-memory-bytes = ", o.shared_memory_bytes,
      "\nshared-memory-caller-bytes = ", o.shared_memory_caller_bytes,
      "\ndecode-threads = ", o.decode_threads, "\nadmission-wait = ", ns(o.admission_wait),
      "\nreceive-timeout = ", ns(o.receive_timeout), "\nsend-timeout = ", ns(o.send_timeout),
      "\nsmall-batch-bytes = ", o.small_batch_bytes, "\nwatchdog-min = ", ns(o.watchdog_min),
      "\ndrain-delay = ", ns(o.drain_delay), "\ndrain-timeout = ", ns(o.drain_timeout),
      "\nlog-level = ", Quoted(o.log_level), "\nlog-format = ", Quoted(o.log_format),
      "\nreflection = ", Quoted(o.reflection), "\ndebug-pages = ", Quoted(o.debug_pages),
      "\nslow-request = ", ns(o.slow_request), "\ntls-cert = ", Quoted(o.tls_cert),
      "\ntls-key = ", Quoted(o.tls_key), "\ntls-client-ca = ", Quoted(o.tls_client_ca),
      "\ntls-client-auth = ", Quoted(o.tls_client_auth),
      "\ninsecure-listen-any = ", o.insecure_listen_any ? "true" : "false",
      "\ntoken-file = ", Quoted(o.token_file),
      "\nallow-plaintext-tokens = ", o.allow_plaintext_tokens ? "true" : "false",
      "\nmax-inflight-per-caller = ", o.max_inflight_per_caller,
      "\nqueue-bytes-per-caller = ", o.queue_bytes_per_caller,
      "\naccess-log = ", Quoted(o.access_log), "\nmax-connection-age = ", ns(o.max_connection_age),
      "\nmax-connection-age-grace = ", ns(o.max_connection_age_grace),
      "\nmax-concurrent-streams = ", o.max_concurrent_streams, "\n");
}

}  // namespace tcgemm
