#include "bench/kernel/measure.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/gpu_plan.h"

namespace tcgemm::bench {
namespace {

constexpr std::chrono::milliseconds kRest{250};
constexpr int kRestedLaunches = 8;
constexpr int kMaxLaunchesOfABurst = 4000;
constexpr int64_t kFewRows = 64;

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// An arm, and how far it is.
struct Runner {
  std::unique_ptr<Arm> arm;
  int launches = 1;  // in a burst
  int next_set = 0;
  std::vector<double> sustained;  // seconds of one product, per burst
  std::vector<double> rested;
};

absl::StatusOr<double> RunBurst(Runner& runner, const OperandSets& sets, int launches) {
  TCGEMM_ASSIGN_OR_RETURN(const double seconds, runner.arm->Burst(sets, runner.next_set, launches));
  runner.next_set = (runner.next_set + launches) % sets.count();
  return seconds / launches;
}

absl::StatusOr<std::vector<Runner>> MakeRunners(Device& device, const OperandSets& sets,
                                                const MeasureOptions& options) {
  std::vector<Runner> runners;
  TCGEMM_ASSIGN_OR_RETURN(std::unique_ptr<Arm> cublas, CreateCublasLtArm(sets));
  runners.push_back({.arm = std::move(cublas)});
  for (KernelId kernel : options.kernels) {
    std::vector<GpuTileEntry> tiles;
    if (options.all_tiles && kernel != KernelId::kSimt) {
      tiles = UsableTiles(device.plan_limits(), kernel, false);
    }
    for (const GpuTileEntry& entry : tiles) {
      TCGEMM_ASSIGN_OR_RETURN(auto arm, CreateOurArm(device, kernel, &entry.tile, sets));
      runners.push_back({.arm = std::move(arm)});
    }
    if (!tiles.empty()) continue;
    TCGEMM_ASSIGN_OR_RETURN(auto arm, CreateOurArm(device, kernel, nullptr, sets));
    runners.push_back({.arm = std::move(arm)});
  }
  if (options.fastest) {
    TCGEMM_ASSIGN_OR_RETURN(auto arm, CreateFastestArm(device, sets));
    runners.push_back({.arm = std::move(arm)});
  }
  if (options.in_place && sets.padding_matters()) {
    TCGEMM_ASSIGN_OR_RETURN(auto arm, CreateInPlaceArm(device, sets));
    runners.push_back({.arm = std::move(arm)});
  }
  if (sets.problem(0).shape().m <= kFewRows && device.plan_limits().compute_capability >= 90) {
    TCGEMM_ASSIGN_OR_RETURN(auto arm, CreateReadProbeArm(device, sets));
    runners.push_back({.arm = std::move(arm)});
  }
  return runners;
}

// Right before fast; and how many launches make a burst.
absl::Status CheckAndCalibrate(Runner& runner, const OperandSets& sets, double burst_seconds) {
  TCGEMM_RETURN_IF_ERROR(sets.Poison());
  TCGEMM_RETURN_IF_ERROR(runner.arm->Burst(sets, 0, 1).status());
  const absl::Status right = runner.arm->kind() == ArmKind::kReadProbe
                                 ? absl::OkStatus()  // it checked itself
                                 : sets.CheckAgainstReference(runner.arm->pitch());
  if (!right.ok()) {
    return absl::Status(right.code(), absl::StrCat(runner.arm->name(), ": ", right.message()));
  }
  TCGEMM_ASSIGN_OR_RETURN(const double once, RunBurst(runner, sets, 4));
  const double launches = std::ceil(burst_seconds / std::max(once, 1e-7));
  runner.launches = static_cast<int>(std::clamp<double>(launches, 1, kMaxLaunchesOfABurst));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<CellResult> MeasureCell(Device& device, const Cell& cell,
                                       const MeasureOptions& options) {
  TCGEMM_ASSIGN_OR_RETURN(const OperandSets sets, OperandSets::Create(device, cell));
  TCGEMM_ASSIGN_OR_RETURN(std::vector<Runner> runners, MakeRunners(device, sets, options));
  const double burst_seconds = options.sustained_seconds / options.bursts;
  for (Runner& runner : runners) {
    TCGEMM_RETURN_IF_ERROR(CheckAndCalibrate(runner, sets, burst_seconds));
  }
  // Round −1 heats up. Every other round runs backwards: nobody always follows the same rival.
  for (int round = -1; round < options.bursts; ++round) {
    for (size_t i = 0; i < runners.size(); ++i) {
      Runner& runner = runners[round % 2 == 0 ? i : runners.size() - 1 - i];
      TCGEMM_ASSIGN_OR_RETURN(const double seconds, RunBurst(runner, sets, runner.launches));
      if (round >= 0) runner.sustained.push_back(seconds);
    }
  }
  CellResult result{.cell = cell};
  if (options.read_clocks) result.clocks = options.read_clocks();
  for (int round = 0; round < options.rested_rounds; ++round) {
    for (Runner& runner : runners) {
      std::this_thread::sleep_for(kRest);
      const int launches = std::min(kRestedLaunches, std::max(1, runner.launches));
      TCGEMM_ASSIGN_OR_RETURN(const double seconds, RunBurst(runner, sets, launches));
      runner.rested.push_back(seconds);
    }
  }
  for (const Runner& runner : runners) {
    result.arms.push_back({.kind = runner.arm->kind(),
                           .arm = runner.arm->name(),
                           .detail = runner.arm->detail(),
                           .rates = {.sustained_seconds = Median(runner.sustained),
                                     .rested_seconds = Median(runner.rested)},
                           .plan = runner.arm->plan()});
  }
  return result;
}

}  // namespace tcgemm::bench
