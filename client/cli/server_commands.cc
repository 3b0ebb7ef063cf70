// info, health and smoke.
#include <nlohmann/json.hpp>
#include <ostream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cli/command.h"
#include "client/cli/proof.h"
#include "client/cli/smoke.h"
#include "client/cli/smoke_table.h"
#include "client/duration.h"

namespace tcgemm::client {
namespace {

void PrintInfo(const ServerInfo& info, const std::string& server, std::ostream& out) {
  const auto line = [&out](const char* name, const std::string& value) {
    out << name << value << "\n";
  };
  const char* const state = info.draining ? "draining" : info.ready ? "ready" : "not ready";
  line("server           ",
       absl::StrCat(server, ", ", state, ", up ",
                    FormatDuration(std::chrono::seconds(info.uptime_seconds))));
  line("version          ", absl::StrCat(info.version, " (", info.commit, ")"));
  line("device           ", absl::StrCat(info.device, ": ", info.device_description));
  line("backend          ",
       absl::StrCat(info.backend, info.cuda.empty() ? "" : ", CUDA " + info.cuda));
  line("kernels          ", absl::StrJoin(info.kernels, " "));
  line("largest message  ", absl::StrCat(info.max_message_bytes, " bytes"));
  line("largest request  ",
       absl::StrCat(info.max_request_memory_bytes, " bytes of A, B and D together"));
  line("batches          ",
       absl::StrCat("up to ", info.max_batch, " requests, collected for ",
                    FormatDuration(std::chrono::microseconds(info.max_queue_delay_us))));
}

std::string InfoJson(const ServerInfo& info, const std::string& server) {
  const nlohmann::ordered_json json = {
      {"server", server},
      {"version", info.version},
      {"commit", info.commit},
      {"device", info.device},
      {"device_description", info.device_description},
      {"backend", info.backend},
      {"cuda", info.cuda},
      {"ready", info.ready},
      {"draining", info.draining},
      {"max_message_bytes", info.max_message_bytes},
      {"max_request_memory_bytes", info.max_request_memory_bytes},
      {"max_batch", info.max_batch},
      {"max_queue_delay_us", info.max_queue_delay_us},
      {"uptime_seconds", info.uptime_seconds},
      {"kernels", info.kernels},
  };
  return json.dump() + "\n";
}

const char* NameOf(Health health) {
  switch (health) {
    case Health::kServing:
      return "SERVING";
    case Health::kNotServing:
      return "NOT_SERVING";
    case Health::kUnknown:
      return "UNKNOWN";
  }
  return "UNKNOWN";
}

}  // namespace

ExitCode RunInfo(const Session& session) {
  const auto client = session.Connect();
  if (!client.ok()) return session.Fail(ExitCode::kUsage, std::string(client.status().message()));
  const absl::StatusOr<ServerInfo> info = (*client)->GetServerInfo(session.call_options());
  if (!info.ok()) return session.FailCall(**client, info.status());
  if (session.flags().json) {
    session.out() << InfoJson(*info, session.flags().server);
  } else {
    PrintInfo(*info, session.flags().server, session.out());
  }
  return ExitCode::kRight;
}

ExitCode RunHealth(const Session& session, const std::string& service) {
  const auto client = session.Connect();
  if (!client.ok()) return session.Fail(ExitCode::kUsage, std::string(client.status().message()));
  // A probe reports what is; it does not wait until it is better.
  CallOptions options = session.call_options();
  options.retry = false;
  const absl::StatusOr<Health> health = (*client)->CheckHealth(service, options);
  if (!health.ok()) return session.FailCall(**client, health.status());
  const bool serving = *health == Health::kServing;
  if (session.flags().json) {
    const nlohmann::ordered_json json = {{"server", session.flags().server},
                                         {"service", service},
                                         {"status", NameOf(*health)},
                                         {"ok", serving}};
    constexpr auto kReplace = nlohmann::ordered_json::error_handler_t::replace;
    session.out() << json.dump(-1, ' ', false, kReplace) << "\n";
  } else {
    session.out() << NameOf(*health) << "\n";
  }
  return serving ? ExitCode::kRight : ExitCode::kWrong;
}

ExitCode RunSmokeCommand(const Session& session, bool quick) {
  const auto client = session.Connect();
  if (!client.ok()) return session.Fail(ExitCode::kUsage, std::string(client.status().message()));
  const bool json = session.flags().json;
  PoolRunner runner(ProofThreads());
  bool header_printed = json;
  const SmokeReport report = RunSmoke(**client,
                                      {.server = session.flags().server,
                                       .shapes = SmokeShapes(quick),
                                       .timeout = session.flags().timeout},
                                      runner, [&](const SmokeRow& row) {
                                        if (!header_printed) session.out() << SmokeTableHeader();
                                        header_printed = true;
                                        if (!json)
                                          session.out() << SmokeTableRow(row) << std::flush;
                                      });
  absl::Status first_failure = report.status;
  for (const SmokeRow& row : report.rows) first_failure.Update(row.status);
  if (!first_failure.ok()) session.ExplainCall(**client, first_failure);
  if (json) {
    session.out() << SmokeJson(report);
  } else if (report.status.ok()) {
    session.out() << SmokeSummary(report);
  }
  return report.exit_code();
}

}  // namespace tcgemm::client
