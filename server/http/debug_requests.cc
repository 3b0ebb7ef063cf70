#include "server/http/debug_requests.h"

#include <arpa/inet.h>

#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"

namespace tcgemm {
namespace {

using Json = nlohmann::ordered_json;

double Milliseconds(Nanos time) { return static_cast<double>(time.count()) / 1e6; }

std::string TimeOf(const NotableCall& call) {
  return absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", absl::FromUnixMillis(call.ended_unix_ms),
                          absl::UTCTimeZone());
}

void AppendCall(const NotableCall& call, std::string& text) {
  absl::StrAppendFormat(&text, "\n%s  %s  %s  %.3f ms  %s\n", TimeOf(call), call.method,
                        absl::StatusCodeToString(call.code), Milliseconds(call.duration),
                        call.caller);
  if (!call.message.empty()) absl::StrAppend(&text, "    ", call.message, "\n");
  if (call.shape.has_value()) {
    absl::StrAppend(&text, "    m ", call.shape->m, ", n ", call.shape->n, ", k ", call.shape->k,
                    "\n");
  }
  if (call.stages.has_value()) {
    text += "    ms:";
    for (int i = 0; i < kStageCount; ++i) {
      absl::StrAppendFormat(&text, "%s %s %.3f", i == 0 ? "" : ",",
                            std::string(StageName(static_cast<Stage>(i))),
                            Milliseconds((*call.stages)[static_cast<size_t>(i)]));
    }
    text += "\n";
  }
  if (!call.trace_id.empty()) absl::StrAppend(&text, "    trace ", call.trace_id, "\n");
}

void AppendKind(const NotableCalls::Kind& kind, const std::string& title, std::string& text) {
  absl::StrAppend(&text, title, ": ", kind.count, " since the start");
  if (kind.calls.size() < kind.count) absl::StrAppend(&text, ", the last ", kind.calls.size());
  text += "\n";
  for (const auto& call : kind.calls) AppendCall(*call, text);
}

Json ToJson(const NotableCall& call) {
  Json json = {{"time", TimeOf(call)},
               {"method", call.method},
               {"code", absl::StatusCodeToString(call.code)},
               {"message", call.message},
               {"duration_ms", Milliseconds(call.duration)},
               {"caller", call.caller}};
  if (call.shape.has_value()) {
    json["m"] = call.shape->m;
    json["n"] = call.shape->n;
    json["k"] = call.shape->k;
  }
  if (call.stages.has_value()) {
    Json stages;
    for (int i = 0; i < kStageCount; ++i) {
      stages[std::string(StageName(static_cast<Stage>(i)))] =
          Milliseconds((*call.stages)[static_cast<size_t>(i)]);
    }
    json["stages_ms"] = std::move(stages);
  }
  if (!call.trace_id.empty()) json["trace_id"] = call.trace_id;
  return json;
}

Json ToJson(const NotableCalls::Kind& kind) {
  Json calls = Json::array();
  for (const auto& call : kind.calls) calls.push_back(ToJson(*call));
  return {{"count", kind.count}, {"calls", std::move(calls)}};
}

}  // namespace

bool IsOwnHost(const std::string& header, const std::string& own) {
  if (header.empty()) return true;
  std::string host = header;
  // A port follows the last colon, unless that is one of a bare IPv6 address.
  const size_t colon = host.rfind(':');
  if (colon != std::string::npos && (host.find(':') == colon || host[colon - 1] == ']')) {
    host.resize(colon);
  }
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  in6_addr ignored;
  return absl::EqualsIgnoreCase(host, "localhost") || absl::EqualsIgnoreCase(host, own) ||
         inet_pton(AF_INET, host.c_str(), &ignored) == 1 ||
         inet_pton(AF_INET6, host.c_str(), &ignored) == 1;
}

std::string DebugRequestsText(const NotableCalls& calls) {
  const NotableCalls::Snapshot now = calls.Read();
  std::string text =
      "The last calls that were slow and that failed, newest first. Times are UTC.\n"
      "/debug/requests?format=json has the same for programs.\n\n";
  AppendKind(now.slow,
             absl::StrCat("Slow (answered, after more than ",
                          absl::FormatDuration(absl::Nanoseconds(calls.slow().count())), ")"),
             text);
  text += "\n";
  AppendKind(now.failed, "Failed", text);
  return text;
}

std::string DebugRequestsJson(const NotableCalls& calls) {
  const NotableCalls::Snapshot now = calls.Read();
  const Json json = {{"slow_request_ms", Milliseconds(calls.slow())},
                     {"kept", NotableCalls::kKept},
                     {"slow", ToJson(now.slow)},
                     {"failed", ToJson(now.failed)}};
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace tcgemm
