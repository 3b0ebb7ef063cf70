// Our kernels beside cuBLASLt in one process.
//
//   kernel_bench [--cells squares|rungs|served|"m,n,k,layout,out;…"] [--kernels
//   tma_wgmma,tma_mma,cp_async_mma,simt]
//                [--tiles planned|all] [--budget SECONDS] [--bursts N] [--sustained SECONDS]
//                [--rested-rounds N] [--no-batch] [--out FOLDER]
//
// Writes kernels.csv, rungs.csv, batched.csv and setup.json into FOLDER, if given, and a table to
// stdout. Exit: 0 · 1 a kernel is wrong or fails · 2 usage · 3 the budget left cells out · 4 no
// GPU.
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_split.h"
#include "bench/kernel/report.h"
#include "kernels/device_cuda.h"

namespace tcgemm::bench {
namespace {

struct Arguments {
  std::string cells = "rungs";
  std::string kernels = "tma_wgmma,tma_mma,cp_async_mma,simt";
  std::string tiles = "planned";
  std::string out;
  double budget = 55;
  bool no_batch = false;
};

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
    const Cell small{.shape = {.m = 128, .n = 128, .k = 128}, .b_transposed = true};
    const absl::StatusOr<BatchResult> batch = MeasureBatch(device, small, 64, 100);
    if (!batch.ok()) return fail("64 problems in one launch", batch.status());
    report.batches.push_back(*batch);
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
  report.options.all_tiles = arguments.tiles == "all";
  report.options.read_clocks = ReadClocks;
  const int exit_code = Measure(**device, *cells, arguments, report);
  if (!arguments.out.empty()) {
    const absl::Status written = WriteReport(report, arguments.out);
    if (!written.ok()) {
      std::fprintf(stderr, "kernel_bench: %s\n", written.ToString().c_str());
      return 1;
    }
  }
  std::fputs(Table(report).c_str(), stdout);
  return exit_code;
}

}  // namespace
}  // namespace tcgemm::bench

int main(int argc, char** argv) {
  using namespace tcgemm::bench;  // NOLINT: the whole program
  Arguments arguments;
  Report report;
  CLI::App app("Our kernels beside cuBLASLt in one process");
  app.add_option("--cells", arguments.cells, "squares, rungs, served or m,n,k,layout,out;...");
  app.add_option("--kernels", arguments.kernels, "of tma_wgmma, tma_mma, cp_async_mma, simt");
  app.add_option("--tiles", arguments.tiles)->check(CLI::IsMember({"planned", "all"}));
  app.add_option("--budget", arguments.budget, "seconds in all; cells beyond it are left out");
  app.add_option("--bursts", report.options.bursts)->check(CLI::Range(1, 1000));
  app.add_option("--sustained", report.options.sustained_seconds, "seconds of each arm")
      ->check(CLI::Range(0.01, 60.0));
  app.add_option("--rested-rounds", report.options.rested_rounds)->check(CLI::Range(0, 100));
  app.add_flag("--no-batch", arguments.no_batch, "leave out 64 x 128x128x128");
  app.add_option("--out", arguments.out, "folder for the result files");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  for (int i = 0; i < argc; ++i) report.command += std::string(i > 0 ? " " : "") + argv[i];
  return Main(arguments, report);
}
