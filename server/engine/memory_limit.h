// How much memory this process may use, and whether the budgets fit in it.
//
// Budgets are there at start, or for the taking later, so a sum that does not fit must be refused
// with words at start: otherwise the kernel kills the server later, without any.
#ifndef TCGEMM_SERVER_ENGINE_MEMORY_LIMIT_H_
#define TCGEMM_SERVER_ENGINE_MEMORY_LIMIT_H_

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace tcgemm {

struct MemoryLimit {
  size_t bytes = 0;    // the tightest of all limits found
  std::string source;  // for people: "cgroup v2 /kubepods/pod1 memory.max", "MemTotal"
  // What the machine could give now (MemAvailable), at most `bytes`.
  size_t available_bytes = 0;
};

// The text of a small file, or nothing when it cannot be read.
using FileReader = std::function<std::optional<std::string>(const std::string& path)>;
FileReader RealFileReader();

// The smallest of: memory.max of this process's cgroup and of every cgroup above it (v2), the same
// of memory.limit_in_bytes (v1), and MemTotal. INTERNAL when /proc/meminfo is not readable.
absl::StatusOr<MemoryLimit> DetectMemoryLimit(const FileReader& read_file);

// The parsers, apart for their tests. Nothing = no limit, or text that is not one.
// memory.max (v2): a number or "max".
std::optional<size_t> ParseCgroupV2Limit(std::string_view text);
// memory.limit_in_bytes (v1): a number; "no limit" is PAGE_COUNTER_MAX, near 2^63.
std::optional<size_t> ParseCgroupV1Limit(std::string_view text);
// /proc/self/cgroup: the path of the v2 hierarchy ("0::/a/b") or of v1's memory controller.
struct CgroupPaths {
  std::optional<std::string> v2;
  std::optional<std::string> v1_memory;
};
CgroupPaths ParseProcSelfCgroup(std::string_view text);
// One line of /proc/meminfo, in bytes: "MemTotal:       16384 kB".
std::optional<size_t> ParseMeminfo(std::string_view text, std::string_view key);

struct MemoryBudget {
  std::string name;  // the flag: "--pinned-bytes"
  size_t bytes = 0;
};

// RESOURCE_EXHAUSTED, naming each budget and its value, the sum, the limit and where the limit
// comes from, when the sum does not fit the limit or what is available now.
absl::Status CheckMemoryBudgets(absl::Span<const MemoryBudget> budgets, const MemoryLimit& limit);

// What the server takes when no flag says otherwise.
struct DefaultBudgets {
  size_t pinned_bytes = 0;   // operands and results of requests
  size_t receive_bytes = 0;  // what gRPC may hold of messages that are not decoded yet
};
// A quarter of the limit each, in whole MiB: half is left for everything else. At most 1 GiB pinned
// (every byte is touched at start, which takes seconds on some machines) and 2 GiB to receive. At
// least 16 MiB, even if that cannot fit: then the check says so.
DefaultBudgets ChooseDefaultBudgets(size_t limit_bytes);
// Of matrices that stay: an eighth of the limit, but no more than half of what `others` leave of
// it, so that this default alone never keeps a server from starting; in whole MiB, at most 1 GiB.
// docs/adr/0012-resident-matrices.md says why.
size_t ChooseDefaultResidentBytes(size_t limit_bytes, absl::Span<const MemoryBudget> others);

}  // namespace tcgemm

#endif  // TCGEMM_SERVER_ENGINE_MEMORY_LIMIT_H_
