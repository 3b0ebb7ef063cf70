#include "client/cli/smoke_table.h"

#include <algorithm>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/advice.h"

namespace tcgemm::client {
namespace {

std::string ErrorOf(const SmokeRow& row) {
  if (!row.status.ok()) return absl::StrCat(CodeName(row.status), ": ", row.status.message());
  return row.worst;
}

}  // namespace

std::string SmokeTableHeader() {
  return absl::StrFormat("%-15s %-6s %-6s %9s %9s %8s  %s\n", "M x N x K", "layout", "output",
                         "err/bound", "ms", "TFLOPS", "ok");
}

std::string SmokeTableRow(const SmokeRow& row) {
  const std::string shape = absl::StrCat(row.m, "x", row.n, "x", row.k);
  const std::string start =
      absl::StrFormat("%-15s %-6s %-6s ", shape, row.layout, std::string(DTypeName(row.output)));
  if (!row.status.ok()) {
    return absl::StrCat(start, absl::StrFormat("%9s %9s %8s  ", "-", "-", "-"), "FAILED  ",
                        ErrorOf(row), "\n");
  }
  std::string end = row.ok ? "ok" : absl::StrCat("WRONG  ", row.worst);
  if (!row.note.empty()) absl::StrAppend(&end, "  (", row.note, ")");
  return absl::StrCat(
      start, absl::StrFormat("%9.4f %9.3f %8.4f  ", row.max_error_ratio, row.ms, row.tflops), end,
      "\n");
}

std::string SmokeSummary(const SmokeReport& report) {
  const std::string where = absl::StrCat(" on ", report.device, " at ", report.server);
  const size_t total = report.rows.size();
  if (report.ok()) return absl::StrCat(total, " products", where, ": all right\n");
  size_t wrong = 0;
  size_t failed = 0;
  for (const SmokeRow& row : report.rows) {
    if (!row.status.ok()) {
      ++failed;
    } else if (!row.ok) {
      ++wrong;
    }
  }
  std::string summary = absl::StrCat(total, " products", where, ": ", wrong, " wrong, ", failed,
                                     " failed, ", total - wrong - failed, " right");
  if (report.abandoned) absl::StrAppend(&summary, "; the rest was not tried");
  return summary + "\n";
}

std::string SmokeJson(const SmokeReport& report) {
  nlohmann::ordered_json json = {{"server", report.server},
                                 {"device", report.device},
                                 {"ok", report.ok()},
                                 {"rows", nlohmann::ordered_json::array()}};
  if (!report.status.ok()) {
    json["error"] = absl::StrCat(CodeName(report.status), ": ", report.status.message());
  }
  for (const SmokeRow& row : report.rows) {
    nlohmann::ordered_json entry = {{"m", row.m},
                                    {"n", row.n},
                                    {"k", row.k},
                                    {"layout", row.layout},
                                    {"output", std::string(DTypeName(row.output))}};
    const bool served = row.status.ok();
    // JSON has no Inf: nlohmann writes null for the ratio of a NaN that should not be there.
    entry["max_error_ratio"] =
        served ? nlohmann::ordered_json(row.max_error_ratio) : nlohmann::ordered_json();
    entry["ms"] = served ? nlohmann::ordered_json(row.ms) : nlohmann::ordered_json();
    entry["tflops"] = served ? nlohmann::ordered_json(row.tflops) : nlohmann::ordered_json();
    entry["ok"] = row.ok;
    if (!row.ok) entry["error"] = ErrorOf(row);
    json["rows"].push_back(std::move(entry));
  }
  // A server's message may be no UTF-8.
  constexpr auto kReplace = nlohmann::ordered_json::error_handler_t::replace;
  return json.dump(-1, ' ', false, kReplace) + "\n";
}

}  // namespace tcgemm::client
