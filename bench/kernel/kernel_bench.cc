// Our kernels beside cuBLASLt in one process.
//
//   kernel_bench [--cells LIST|"m,n,k,layout,out;…"] [--kernels
//   tma_wgmma,tma_mma,cp_async_mma,simt]
//                [--tiles planned|all] [--in-place] [--fastest] [--budget SECONDS] [--bursts N]
//                [--sustained SECONDS] [--rested-rounds N] [--no-batch] [--out FOLDER]
//   kernel_bench --tune [--write-table FILE] [--cells …] [--kernels …] [--budget SECONDS] …
//
// LIST: squares, rungs, served, few_rows, few_tiles, unaligned, accumulate. Writes kernels.csv,
// rungs.csv, read_probe.csv, fastest.csv, batched.csv and setup.json into FOLDER, if given, and a
// table to stdout. --tune: every tile of every cell, best first, tune.csv too; 0.1 s each and 460 s
// in all unless told otherwise. --write-table: the same, and kernels/plan_table.inc into FILE.
// Exit: 0 · 1 a kernel is wrong or fails · 2 usage · 3 the budget left cells out · 4 no GPU.
#include <chrono>
#include <cstdio>
#include <ctime>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "bench/kernel/batch.h"
#include "bench/kernel/report.h"
#include "bench/kernel/tune.h"
#include "kernels/device_cuda.h"

namespace tcgemm::bench {
namespace {

struct Arguments {
  std::string cells = "rungs";
  std::string kernels = "tma_wgmma,tma_mma,cp_async_mma,simt";
  std::string tiles = "planned";
  std::string out;
  std::string write_table;
  double budget = 55;
  bool no_batch = false;
  bool tune = false;
};

constexpr int kBatchRounds = 20;

bool ParseKernels(const std::string& text, std::vector<KernelId>& kernels) {
  for (const absl::string_view name : absl::StrSplit(text, ',', absl::SkipEmpty())) {
    bool known = false;
    for (KernelId kernel :
         {KernelId::kTmaWgmma, KernelId::kTmaMma, KernelId::kCpAsyncMma, KernelId::kSimt}) {
      if (name != std::string(KernelName(kernel))) continue;
      kernels.push_back(kernel);
      known = true;
    }
    if (!known) return false;
  }
  return !kernels.empty();
}

// What a cell takes: its arms' bursts and rests, as the one before it took.
int Measure(Device& device, const std::vector<Cell>& cells, const Arguments& arguments,
            Report& report) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point start = Clock::now();
  const auto since_start = [&] {
    return std::chrono::duration<double>(Clock::now() - start).count();
  };
  const auto fail = [](const std::string& what, const absl::Status& status) {
    std::fprintf(stderr, "kernel_bench: %s: %s\n", what.c_str(), status.ToString().c_str());
    return 1;
  };
  if (!arguments.no_batch) {
    for (const BatchCase& batch : BatchCases()) {
      const absl::StatusOr<BatchResult> result = MeasureBatch(device, batch, kBatchRounds);
      if (!result.ok()) return fail(batch.name, result.status());
      report.batches.push_back(*result);
    }
  }
  double longest = 0;
  int exit_code = 0;
  for (const Cell& cell : cells) {
    if (since_start() + longest > arguments.budget) {
      report.left_out.push_back(cell.ToString());
      exit_code = 3;
      continue;
    }
    const double before = since_start();
    const absl::StatusOr<CellResult> result = MeasureCell(device, cell, report.options);
    if (!result.ok()) return fail(cell.ToString(), result.status());
    report.cells.push_back(*result);
    longest = std::max(longest, since_start() - before);
    std::fprintf(stderr, "%s: %.1f s\n", cell.ToString().c_str(), since_start() - before);
  }
  return exit_code;
}

std::string Today() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  char text[16];
  std::strftime(text, sizeof(text), "%Y-%m-%d", &utc);
  return text;
}

// Ranks what was measured; prints it and writes tune.csv and the plan table.
absl::Status Tune(const Device& device, const Arguments& arguments, const Report& report) {
  const PlanLimits& limits = device.plan_limits();
  TCGEMM_ASSIGN_OR_RETURN(const std::vector<TunedCell> tuned, Rank(limits, report.cells));
  std::fputs(TuneTable(tuned).c_str(), stdout);
  if (!arguments.out.empty()) {
    TCGEMM_RETURN_IF_ERROR(WriteFile(arguments.out + "/tune.csv", TuneCsv(tuned)));
  }
  if (arguments.write_table.empty()) return absl::OkStatus();
  return WriteFile(
      arguments.write_table,
      PlanTableText(limits, tuned, {.chip = device.info().description, .date = Today()}));
}

int Main(const Arguments& arguments, Report report) {
  const absl::StatusOr<std::vector<Cell>> cells = ParseCells(arguments.cells);
  if (!cells.ok() || !ParseKernels(arguments.kernels, report.options.kernels)) {
    std::fprintf(stderr, "kernel_bench: %s\n",
                 cells.ok() ? "--kernels takes tma_wgmma, tma_mma, cp_async_mma and simt"
                            : cells.status().ToString().c_str());
    return 2;
  }
  const absl::StatusOr<std::unique_ptr<Device>> device = CreateCudaDevice(0);
  if (!device.ok()) {
    std::fprintf(stderr, "kernel_bench: %s\n", device.status().ToString().c_str());
    return 4;
  }
  report.device = (*device)->info().description;
  report.clocks_idle = ReadClocks();
  report.options.all_tiles = arguments.tiles == "all" || arguments.tune;
  report.options.read_clocks = ReadClocks;
  const int exit_code = Measure(**device, *cells, arguments, report);
  absl::Status written;
  if (!arguments.out.empty()) written = WriteReport(report, arguments.out);
  if (written.ok() && arguments.tune && exit_code != 1) written = Tune(**device, arguments, report);
  if (!written.ok()) {
    std::fprintf(stderr, "kernel_bench: %s\n", written.ToString().c_str());
    return 1;
  }
  std::fputs(arguments.tune ? "" : Table(report).c_str(), stdout);
  return exit_code;
}

}  // namespace
}  // namespace tcgemm::bench

int main(int argc, char** argv) {
  using namespace tcgemm::bench;  // NOLINT: the whole program
  Arguments arguments;
  Report report;
  CLI::App app("Our kernels beside cuBLASLt in one process");
  app.add_option(
      "--cells", arguments.cells,
      "squares, rungs, served, few_rows, few_tiles, unaligned, accumulate or m,n,k,layout,out;...");
  CLI::Option* const kernels =
      app.add_option("--kernels", arguments.kernels, "of tma_wgmma, tma_mma, cp_async_mma, simt");
  app.add_option("--tiles", arguments.tiles)->check(CLI::IsMember({"planned", "all"}));
  app.add_flag("--in-place", report.options.in_place,
               "unaligned operands as they lie, besides, by the kernel that takes them");
  app.add_flag("--fastest", report.options.fastest, "the plan that may split K, besides");
  CLI::Option* const budget =
      app.add_option("--budget", arguments.budget, "seconds in all; cells beyond it are left out");
  app.add_option("--bursts", report.options.bursts)->check(CLI::Range(1, 1000));
  CLI::Option* const sustained =
      app.add_option("--sustained", report.options.sustained_seconds, "seconds of each arm")
          ->check(CLI::Range(0.01, 60.0));
  CLI::Option* const rested =
      app.add_option("--rested-rounds", report.options.rested_rounds)->check(CLI::Range(0, 100));
  app.add_flag("--no-batch", arguments.no_batch, "leave out the batches");
  app.add_flag("--tune", arguments.tune, "every tile of every cell, best first");
  app.add_option("--write-table", arguments.write_table,
                 "--tune, and the plan table into this file");
  app.add_option("--out", arguments.out, "folder for the result files");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  arguments.tune |= !arguments.write_table.empty();
  if (arguments.tune) {
    arguments.no_batch = true;
    if (budget->count() == 0) arguments.budget = 460;
    if (sustained->count() == 0) report.options.sustained_seconds = 0.1;
    if (rested->count() == 0) report.options.rested_rounds = 0;
    if (kernels->count() == 0) arguments.kernels = "tma_wgmma,tma_mma,cp_async_mma";
  }
  for (int i = 0; i < argc; ++i) report.command += std::string(i > 0 ? " " : "") + argv[i];
  return Main(arguments, report);
}
