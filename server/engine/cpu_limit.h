// How many cores this process may use: threads beyond that only take each other's time.
#ifndef TCGEMM_SERVER_ENGINE_CPU_LIMIT_H_
#define TCGEMM_SERVER_ENGINE_CPU_LIMIT_H_

#include <optional>
#include <string_view>

#include "server/engine/memory_limit.h"

namespace tcgemm {

// The cores of the calling thread's affinity mask, at most the CPU quota (rounded up) of this
// process's cgroup and of those above it (v2's cpu.max). ≥ 1.
int UsableCores(const FileReader& read_file);

// cpu.max: "QUOTA PERIOD" in µs, or "max PERIOD". In cores; nothing = no quota, or text that is not
// one. Source: Linux, Documentation/admin-guide/cgroup-v2.rst, "CPU Interface Files".
std::optional<double> ParseCpuMax(std::string_view text);

// Threads that copy large operands, when no flag says how many: half of the cores, since the other
// half is gRPC's, and 2 to 8. One thread moves 7 to 9 GB/s; eight pass a socket's rate many times.
int DefaultDecodeThreads(int cores);

}  // namespace tcgemm

#endif  // TCGEMM_SERVER_ENGINE_CPU_LIMIT_H_
