#include "server/engine/cpu_limit.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace tcgemm {

std::optional<double> ParseCpuMax(std::string_view text) {
  const std::vector<absl::string_view> words = absl::StrSplit(
      absl::string_view(text.data(), text.size()), absl::ByAnyChar(" \n"), absl::SkipEmpty());
  double quota = 0;
  double period = 0;
  if (words.size() != 2 || !absl::SimpleAtod(words[0], &quota) ||
      !absl::SimpleAtod(words[1], &period) || !(quota > 0) || !(period > 0)) {
    return std::nullopt;
  }
  return quota / period;
}

int UsableCores(const FileReader& read_file) {
  cpu_set_t set;
  double cores = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
  const auto cgroup = read_file("/proc/self/cgroup");
  const CgroupPaths paths = cgroup.has_value() ? ParseProcSelfCgroup(*cgroup) : CgroupPaths{};
  std::string path = paths.v2.value_or("/");
  // A child without a quota is bound by its parent's.
  while (true) {
    if (path == "/") path.clear();
    const auto text = read_file(absl::StrCat("/sys/fs/cgroup", path, "/cpu.max"));
    const auto quota = text.has_value() ? ParseCpuMax(*text) : std::nullopt;
    if (quota.has_value()) cores = std::min(cores, std::ceil(*quota));
    if (path.empty()) return std::max(1, static_cast<int>(cores));
    path.resize(path.rfind('/') == std::string::npos ? 0 : path.rfind('/'));
  }
}

int DefaultDecodeThreads(int cores) { return std::clamp(cores / 2, 2, 8); }

}  // namespace tcgemm
