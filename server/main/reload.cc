#include "server/main/reload.h"

#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace tcgemm {
namespace {

using Values = std::map<std::string, std::string>;

// Each flag as --print-config shows it.
Values ValuesOf(const ServerOptions& options) {
  Values values;
  const std::string toml = ToToml(options);
  for (const absl::string_view line : absl::StrSplit(toml, '\n', absl::SkipEmpty())) {
    const std::pair<std::string, std::string> parts =
        absl::StrSplit(line, absl::MaxSplits(" = ", 1));
    values.insert(parts);
  }
  return values;
}

}  // namespace

ReloadPlan PlanReload(const ServerOptions& started, const ServerOptions& now,
                      const ServerOptions& wanted) {
  ReloadPlan plan{.options = now};
  ServerOptions& next = plan.options;
  next.log_level = wanted.log_level;
  next.max_queue_delay_us = wanted.max_queue_delay_us;
  if (wanted.max_batch <= started.max_batch) next.max_batch = wanted.max_batch;
  next.max_inflight_per_caller = wanted.max_inflight_per_caller;
  next.queue_bytes_per_caller = wanted.queue_bytes_per_caller;
  next.resident_bytes_per_caller = wanted.resident_bytes_per_caller;
  const Values before = ValuesOf(now);
  const Values after = ValuesOf(next);
  const Values asked = ValuesOf(wanted);
  for (const auto& [flag, value] : after) {
    if (before.at(flag) != value) {
      plan.changed.push_back(absl::StrCat("--", flag, " from ", before.at(flag), " to ", value));
    }
  }
  Values all = asked;
  all.insert(after.begin(), after.end());  // a list that is empty has no line
  for (const auto& [flag, ignored] : all) {
    const auto has = after.find(flag);
    const auto wants = asked.find(flag);
    const bool same = has != after.end() && wants != asked.end() && has->second == wants->second;
    if (!same) plan.needs_restart.push_back(absl::StrCat("--", flag));
  }
  return plan;
}

}  // namespace tcgemm
