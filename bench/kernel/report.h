// Result files of kernel_bench and the table on its stdout.
#ifndef TCGEMM_BENCH_KERNEL_REPORT_H_
#define TCGEMM_BENCH_KERNEL_REPORT_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "bench/kernel/batch.h"
#include "bench/kernel/measure.h"

namespace tcgemm::bench {

struct Report {
  std::string command;
  std::string device;       // DeviceInfo::description
  std::string clocks_idle;  // before the first cell
  MeasureOptions options;
  std::vector<CellResult> cells;
  std::vector<BatchResult> batches;
  std::vector<std::string> left_out;  // cells for which the budget was too small
};

// "name, driver, clocks, power, temperature" of GPU 0, or "nvidia-smi: not there".
std::string ReadClocks();

// Makes the folders above it, too. UNAVAILABLE, naming the file, when it cannot be written.
absl::Status WriteFile(const std::string& path, const std::string& text);

// kernels.csv, rungs.csv (square cells), read_probe.csv (M ≤ 64), fastest.csv, batched.csv and
// setup.json in `folder`, which it makes. WriteFile's error.
absl::Status WriteReport(const Report& report, const std::string& folder);
// A line per cell and arm.
std::string Table(const Report& report);

}  // namespace tcgemm::bench

#endif  // TCGEMM_BENCH_KERNEL_REPORT_H_
