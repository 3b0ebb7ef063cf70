#include "bench/kernel/report.h"

#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace tcgemm::bench {
namespace {

// Dense bf16 of an H100 or H200 SXM by NVIDIA's datasheet; other chips: not known here.
double PeakTflops(const std::string& device) {
  return absl::StrContains(device, "H100") || absl::StrContains(device, "H200") ? 989.4 : 0;
}

double Tflops(const Cell& cell, double seconds) {
  return seconds > 0 ? cell.shape.flops() / seconds / 1e12 : 0;
}

// 0 for what was not measured.
double Ratio(double theirs, double ours) { return ours > 0 ? theirs / ours : 0; }

double SecondsOf(const ArmResult& arm, bool sustained) {
  return sustained ? arm.rates.sustained_seconds : arm.rates.rested_seconds;
}

// Below, start and end of a launch are too large a part of it.
const char* WantedOfProbe(int64_t weights) {
  if (weights >= int64_t{32} << 20) return "0.88";
  return weights >= int64_t{16} << 20 ? "0.70" : "";
}

std::string KernelsCsv(const Report& report) {
  std::string csv = "m,n,k,layout,out,mode,ours_tflops,cublaslt_tflops,ratio,kernel\n";
  for (const CellResult& result : report.cells) {
    const Cell& cell = result.cell;
    for (bool sustained : {true, false}) {
      const double theirs = Tflops(cell, SecondsOf(result.arms[0], sustained));
      for (const ArmResult& arm : result.arms) {
        if (arm.kind != ArmKind::kOurs || SecondsOf(arm, sustained) == 0) continue;
        const double ours = Tflops(cell, SecondsOf(arm, sustained));
        const char* const place = arm.arm.starts_with("in_place") ? "in place: " : "";
        absl::StrAppendFormat(&csv, "%d,%d,%d,%s,%s,%s,%.2f,%.2f,%.4f,%s%s\n", cell.shape.m,
                              cell.shape.n, cell.shape.k, cell.LayoutString(), cell.OutputString(),
                              sustained ? "sustained" : "rested", ours, theirs, ours / theirs,
                              place, arm.detail);
      }
    }
  }
  return csv;
}

// What part of the probe's rate a product with few rows reaches: the bytes of B over the time.
std::string ReadProbeCsv(const Report& report) {
  std::string csv = "m,n,k,layout,out,probe_us,probe_gbytes_per_s,ours_us,of_probe,wanted,kernel\n";
  for (const CellResult& result : report.cells) {
    const Cell& cell = result.cell;
    const ArmResult& probe = result.arms.back();
    if (probe.kind != ArmKind::kReadProbe) continue;
    const double seconds = SecondsOf(probe, true);
    const int64_t weights = cell.shape.n * cell.shape.k;
    const char* const wanted = WantedOfProbe(weights);
    for (const ArmResult& arm : result.arms) {
      if (arm.kind != ArmKind::kOurs) continue;
      absl::StrAppendFormat(&csv, "%d,%d,%d,%s,%s,%.2f,%.0f,%.2f,%.3f,%s,%s\n", cell.shape.m,
                            cell.shape.n, cell.shape.k, cell.LayoutString(), cell.OutputString(),
                            seconds * 1e6, 2e-9 * static_cast<double>(weights) / seconds,
                            SecondsOf(arm, true) * 1e6, seconds / SecondsOf(arm, true), wanted,
                            arm.detail);
    }
  }
  return csv;
}

// K split beside the first arm of ours, which does not split it; sustained.
std::string FastestCsv(const Report& report) {
  std::string csv =
      "m,n,k,layout,out,fastest_us,default_us,gain,ratio_to_cublaslt,plan,default_plan\n";
  for (const CellResult& result : report.cells) {
    const ArmResult* standard = nullptr;
    for (const ArmResult& arm : result.arms) {
      if (standard == nullptr && arm.kind == ArmKind::kOurs) standard = &arm;
      if (arm.kind != ArmKind::kFastest || standard == nullptr) continue;
      const Cell& cell = result.cell;
      const double seconds = SecondsOf(arm, true);
      const double before = SecondsOf(*standard, true);
      absl::StrAppendFormat(&csv, "%d,%d,%d,%s,%s,%.2f,%.2f,%.3f,%.3f,%s,%s\n", cell.shape.m,
                            cell.shape.n, cell.shape.k, cell.LayoutString(), cell.OutputString(),
                            seconds * 1e6, before * 1e6, before / seconds,
                            SecondsOf(result.arms[0], true) / seconds, arm.detail,
                            standard->detail);
    }
  }
  return csv;
}

// Sustained rates of the square cells.
std::string RungsCsv(const Report& report) {
  std::string csv = "kernel,n,tflops,ratio_to_cublaslt,percent_of_peak\n";
  const double peak = PeakTflops(report.device);
  for (const CellResult& result : report.cells) {
    const GemmShape& shape = result.cell.shape;
    if (shape.m != shape.n || shape.n != shape.k) continue;
    const double theirs = Tflops(result.cell, SecondsOf(result.arms[0], true));
    for (const ArmResult& arm : result.arms) {
      if (arm.kind == ArmKind::kReadProbe) continue;
      const double tflops = Tflops(result.cell, SecondsOf(arm, true));
      absl::StrAppendFormat(&csv, "%s,%d,%.2f,%.4f,%s\n", arm.arm, shape.n, tflops, tflops / theirs,
                            peak > 0 ? absl::StrFormat("%.1f", 100 * tflops / peak) : "");
    }
  }
  return csv;
}

std::string BatchedCsv(const Report& report) {
  std::string csv =
      "batch,sets,problems,m,n,k,layout,out,one_launch_us,one_by_one_us,cublas_loop_us,"
      "cublas_batched_us,ratio_to_loop,ratio_to_batched,kernel\n";
  for (const BatchResult& result : report.batches) {
    const std::vector<GemmShape>& shapes = result.batch.shapes;
    const std::string m = result.batch.uniform() ? absl::StrCat(shapes[0].m) : "1..500";
    const double ours = result.one_launch_seconds;
    absl::StrAppendFormat(&csv, "%s,%d,%d,%s,%d,%d,NT,bf16,%.2f,%.2f,%.2f,%.2f,%.3f,%.3f,%s\n",
                          result.batch.name, result.batch.sets, shapes.size(), m, shapes[0].n,
                          shapes[0].k, ours * 1e6, result.one_by_one_seconds * 1e6,
                          result.cublas_loop_seconds * 1e6, result.cublas_batched_seconds * 1e6,
                          result.cublas_loop_seconds / ours, result.cublas_batched_seconds / ours,
                          result.kernel);
  }
  return csv;
}

std::string SetupJson(const Report& report) {
  int runtime = 0;
  int driver = 0;
  cudaRuntimeGetVersion(&runtime);
  cudaDriverGetVersion(&driver);
  nlohmann::json clocks = nlohmann::json::object();
  nlohmann::json algorithms = nlohmann::json::object();
  for (const CellResult& result : report.cells) {
    clocks[result.cell.ToString()] = result.clocks;
    algorithms[result.cell.ToString()] = result.arms[0].detail;
  }
  const MeasureOptions& options = report.options;
  const nlohmann::json setup = {
      {"chip", report.device},
      {"driver_cuda", driver},
      {"cuda_runtime", runtime},
      {"cublaslt", cublasLtGetVersion()},
      {"clocks_and_power_idle", report.clocks_idle},
      {"clocks_and_power_after_the_sustained_bursts", clocks},
      {"cublaslt_algorithms", algorithms},
      {"data",
       "standard normals in bf16, made on the device; outputs poisoned; operand sets "
       "rotated, 120 MiB or 256 sets of them between two uses; cuBLASLt's dense, ours with rows "
       "padded to 64 elements; in batched.csv the number of sets, 0: 120 MiB"},
      {"order", "bursts of the arms alternate, every other round backwards, one round to heat up"},
      {"repeats", absl::StrFormat("sustained: median of %d bursts of %.3f s; rested: median of %d "
                                  "times 0.25 s pause and at most 8 launches",
                                  options.bursts, options.sustained_seconds / options.bursts,
                                  options.rested_rounds)},
      {"left_out_for_time", report.left_out},
      {"command", report.command}};
  return setup.dump(2) + "\n";
}

}  // namespace

std::string ReadClocks() {
  FILE* pipe = popen(
      "nvidia-smi -i 0 --format=csv,noheader --query-gpu=name,driver_version,clocks.sm,clocks.mem,"
      "power.draw,power.limit,temperature.gpu,clocks_event_reasons.active 2>&1",
      "r");
  if (pipe == nullptr) return "nvidia-smi: not there";
  char line[512] = {};
  const bool got = fgets(line, sizeof(line), pipe) != nullptr;
  return pclose(pipe) == 0 && got ? std::string(absl::StripAsciiWhitespace(line))
                                  : "nvidia-smi: not there";
}

absl::Status WriteFile(const std::string& path, const std::string& text) {
  std::error_code error;  // opening the file says what came of it
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), error);
  std::ofstream file(path);
  file << text;
  file.close();
  if (!file) return absl::UnavailableError(absl::StrCat("cannot write ", path));
  return absl::OkStatus();
}

absl::Status WriteReport(const Report& report, const std::string& folder) {
  const std::pair<const char*, std::string> files[] = {
      {"kernels.csv", KernelsCsv(report)},      {"rungs.csv", RungsCsv(report)},
      {"read_probe.csv", ReadProbeCsv(report)}, {"fastest.csv", FastestCsv(report)},
      {"batched.csv", BatchedCsv(report)},      {"setup.json", SetupJson(report)}};
  for (const auto& [name, text] : files) {
    const absl::Status status = WriteFile(absl::StrCat(folder, "/", name), text);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

std::string Table(const Report& report) {
  std::string table = absl::StrFormat("%-24s %-24s %9s %9s %7s %7s\n", "product", "arm", "TFLOPS",
                                      "rested", "ratio", "rested");
  for (const CellResult& result : report.cells) {
    const ArmResult& rival = result.arms[0];
    for (const ArmResult& arm : result.arms) {
      // The probe's "ratio": what part of its time would be ours, were memory all that matters.
      absl::StrAppendFormat(&table, "%-24s %-24s %9.1f %9.1f %7.3f %7.3f\n", result.cell.ToString(),
                            arm.arm, Tflops(result.cell, SecondsOf(arm, true)),
                            Tflops(result.cell, SecondsOf(arm, false)),
                            SecondsOf(rival, true) / SecondsOf(arm, true),
                            Ratio(SecondsOf(rival, false), SecondsOf(arm, false)));
    }
  }
  for (const BatchResult& batch : report.batches) {
    const double ours = batch.one_launch_seconds;
    absl::StrAppendFormat(
        &table,
        "%-18s %s one launch %.1f us; one by one %.2f, cuBLAS's loop %.2f, batched %.2f times\n",
        batch.batch.name, batch.batch.sets > 0 ? "3 sets:" : "past L2:", ours * 1e6,
        batch.one_by_one_seconds / ours, batch.cublas_loop_seconds / ours,
        batch.cublas_batched_seconds / ours);
  }
  for (const std::string& cell : report.left_out) {
    absl::StrAppend(&table, "left out, the budget is used up: ", cell, "\n");
  }
  return table;
}

}  // namespace tcgemm::bench
