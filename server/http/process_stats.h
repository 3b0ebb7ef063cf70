// What Prometheus' process collectors tell, from /proc/self.
#ifndef TCGEMM_SERVER_HTTP_PROCESS_STATS_H_
#define TCGEMM_SERVER_HTTP_PROCESS_STATS_H_

#include <optional>
#include <string>
#include <string_view>

namespace tcgemm {

struct ProcessStats {
  double resident_bytes = 0;
  double cpu_seconds = 0;  // user and system, of all threads
  double open_fds = 0;
  double max_fds = 0;             // the soft limit
  double start_time_seconds = 0;  // since the epoch
};

// Of this process, now. What /proc does not give stays 0.
ProcessStats ReadProcessStats();

// The fields of /proc/PID/stat that count here, in clock ticks (proc(5)); nothing for other text.
struct ProcStat {
  double cpu_ticks = 0;    // utime + stime
  double start_ticks = 0;  // since boot
  double resident_pages = 0;
};
std::optional<ProcStat> ParseProcStat(std::string_view text);

}  // namespace tcgemm

#endif  // TCGEMM_SERVER_HTTP_PROCESS_STATS_H_
