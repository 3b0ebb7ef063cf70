#include "server/http/process_stats.h"

#include <dirent.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <memory>
#include <sstream>
#include <vector>

namespace tcgemm {
namespace {

std::string ReadFile(const char* path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

double CountOpenFds() {
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir("/proc/self/fd"), closedir);
  if (folder == nullptr) return 0;
  int entries = 0;
  while (readdir(folder.get()) != nullptr) ++entries;
  return entries - 3;  // ".", ".." and the folder itself
}

// Seconds from the epoch to boot.
double BootTime() {
  std::istringstream lines(ReadFile("/proc/stat"));
  std::string line;
  while (std::getline(lines, line)) {
    double seconds;
    if (std::sscanf(line.c_str(), "btime %lf", &seconds) == 1) return seconds;
  }
  return 0;
}

}  // namespace

std::optional<ProcStat> ParseProcStat(std::string_view text) {
  // The second field is the command in parentheses and may hold anything, parentheses included.
  const size_t close = text.rfind(')');
  if (close == std::string_view::npos) return std::nullopt;
  std::istringstream rest{std::string(text.substr(close + 1))};
  std::vector<std::string> fields;
  for (std::string field; rest >> field;) fields.push_back(field);
  // fields[0] is field 3 of proc(5): utime 14, stime 15, starttime 22, rss 24.
  if (fields.size() < 22) return std::nullopt;
  const auto number = [&](int field) { return std::strtod(fields[field - 3].c_str(), nullptr); };
  return ProcStat{.cpu_ticks = number(14) + number(15),
                  .start_ticks = number(22),
                  .resident_pages = number(24)};
}

ProcessStats ReadProcessStats() {
  ProcessStats stats;
  stats.open_fds = CountOpenFds();
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) == 0) stats.max_fds = static_cast<double>(files.rlim_cur);
  const std::optional<ProcStat> stat = ParseProcStat(ReadFile("/proc/self/stat"));
  if (!stat.has_value()) return stats;
  const auto ticks = static_cast<double>(sysconf(_SC_CLK_TCK));
  stats.cpu_seconds = stat->cpu_ticks / ticks;
  stats.resident_bytes = stat->resident_pages * static_cast<double>(sysconf(_SC_PAGESIZE));
  stats.start_time_seconds = BootTime() + stat->start_ticks / ticks;
  return stats;
}

}  // namespace tcgemm
