#include "server/engine/memory_limit.h"

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <limits>
#include <sstream>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace tcgemm {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

std::optional<size_t> ParseBytes(std::string_view text) {
  uint64_t value = 0;
  if (!absl::SimpleAtoi(absl::StripAsciiWhitespace({text.data(), text.size()}), &value)) {
    return std::nullopt;
  }
  return value;
}

// Lowers `limit` to the tightest limit of the cgroup `path` and of those above it. A child without
// a limit is bound by its parent's.
void ApplyCgroup(const FileReader& read_file, const std::string& mount, const std::string& file,
                 std::string path, std::optional<size_t> (*parse)(std::string_view),
                 const std::string& label, MemoryLimit& limit) {
  while (true) {
    const std::string folder = path == "/" ? "" : path;
    const auto text = read_file(absl::StrCat(mount, folder, "/", file));
    const auto bytes = text.has_value() ? parse(*text) : std::nullopt;
    if (bytes.has_value() && *bytes < limit.bytes) {
      limit.bytes = *bytes;
      limit.source = absl::StrCat(label, " ", path, " ", file);
    }
    if (folder.empty()) return;
    const size_t slash = path.rfind('/');
    path = slash == 0 || slash == std::string::npos ? "/" : path.substr(0, slash);
  }
}

std::string Describe(size_t bytes) {
  if (bytes < kMiB || bytes == std::numeric_limits<size_t>::max()) return absl::StrCat(bytes);
  return absl::StrCat(bytes, " (", bytes / kMiB, " MiB)");
}

}  // namespace

FileReader RealFileReader() {
  return [](const std::string& path) -> std::optional<std::string> {
    std::ifstream file(path);
    if (!file) return std::nullopt;
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
  };
}

absl::StatusOr<MemoryLimit> DetectMemoryLimit(const FileReader& read_file) {
  const auto meminfo = read_file("/proc/meminfo");
  const auto total = meminfo.has_value() ? ParseMeminfo(*meminfo, "MemTotal") : std::nullopt;
  if (!total.has_value()) return absl::InternalError("no MemTotal in /proc/meminfo");
  MemoryLimit limit{.bytes = *total, .source = "MemTotal"};
  const auto cgroup = read_file("/proc/self/cgroup");
  const CgroupPaths paths = cgroup.has_value() ? ParseProcSelfCgroup(*cgroup) : CgroupPaths{};
  if (paths.v2.has_value()) {
    ApplyCgroup(read_file, "/sys/fs/cgroup", "memory.max", *paths.v2, ParseCgroupV2Limit,
                "cgroup v2", limit);
  }
  if (paths.v1_memory.has_value()) {
    ApplyCgroup(read_file, "/sys/fs/cgroup/memory", "memory.limit_in_bytes", *paths.v1_memory,
                ParseCgroupV1Limit, "cgroup v1", limit);
  }
  // Kernels before 3.14 have no MemAvailable.
  const size_t available = ParseMeminfo(*meminfo, "MemAvailable").value_or(limit.bytes);
  limit.available_bytes = std::min(limit.bytes, available);
  return limit;
}

std::optional<size_t> ParseCgroupV2Limit(std::string_view text) {
  return ParseBytes(text);  // "max" is not a number
}

std::optional<size_t> ParseCgroupV1Limit(std::string_view text) {
  const auto bytes = ParseBytes(text);
  if (bytes.has_value() && *bytes >= size_t{1} << 62) return std::nullopt;
  return bytes;
}

CgroupPaths ParseProcSelfCgroup(std::string_view text) {
  CgroupPaths paths;
  for (absl::string_view line : absl::StrSplit(absl::string_view(text.data(), text.size()), '\n')) {
    // hierarchy-ID:controllers:path, and the path may hold colons.
    const std::vector<std::string> fields = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (fields.size() != 3 || !absl::StartsWith(fields[2], "/")) continue;
    if (fields[0] == "0" && fields[1].empty()) paths.v2 = fields[2];
    const std::vector<std::string> controllers = absl::StrSplit(fields[1], ',');
    if (std::find(controllers.begin(), controllers.end(), "memory") != controllers.end()) {
      paths.v1_memory = fields[2];
    }
  }
  return paths;
}

std::optional<size_t> ParseMeminfo(std::string_view text, std::string_view key) {
  const std::string start = absl::StrCat(absl::string_view(key.data(), key.size()), ":");
  for (absl::string_view line : absl::StrSplit(absl::string_view(text.data(), text.size()), '\n')) {
    if (!absl::StartsWith(line, start)) continue;
    line.remove_prefix(start.size());
    if (!absl::EndsWith(line, " kB")) return std::nullopt;
    line.remove_suffix(3);
    const auto kib = ParseBytes({line.data(), line.size()});
    if (!kib.has_value() || *kib > std::numeric_limits<size_t>::max() / 1024) return std::nullopt;
    return *kib * 1024;
  }
  return std::nullopt;
}

absl::Status CheckMemoryBudgets(absl::Span<const MemoryBudget> budgets, const MemoryLimit& limit) {
  size_t sum = 0;
  std::string list;
  for (const MemoryBudget& budget : budgets) {
    const size_t room = std::numeric_limits<size_t>::max() - sum;
    sum += std::min(room, budget.bytes);  // saturates: a wrapped sum would fit
    absl::StrAppend(&list, list.empty() ? "" : " + ", budget.name, " ", Describe(budget.bytes));
  }
  const std::string what = absl::StrCat("memory budgets: ", list, " = ", Describe(sum));
  if (sum > limit.bytes) {
    return absl::ResourceExhaustedError(absl::StrCat(what, " is more than the limit of ",
                                                     Describe(limit.bytes), " (", limit.source,
                                                     "); lower a budget or raise the limit"));
  }
  if (sum > limit.available_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat(what, " is more than the ", Describe(limit.available_bytes),
                     " available now, of a limit of ", Describe(limit.bytes), " (", limit.source,
                     "); lower a budget or stop something else"));
  }
  return absl::OkStatus();
}

DefaultBudgets ChooseDefaultBudgets(size_t limit_bytes) {
  const size_t quarter = limit_bytes / 4 / kMiB * kMiB;
  return {.pinned_bytes = std::clamp(quarter, 16 * kMiB, 1024 * kMiB),
          .receive_bytes = std::clamp(quarter, 16 * kMiB, 2048 * kMiB)};
}

size_t ChooseDefaultResidentBytes(size_t limit_bytes, absl::Span<const MemoryBudget> others) {
  size_t left = limit_bytes;
  for (const MemoryBudget& other : others) left -= std::min(left, other.bytes);
  return std::min({limit_bytes / 8, left / 2, 1024 * kMiB}) / kMiB * kMiB;
}

}  // namespace tcgemm
