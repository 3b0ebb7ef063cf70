#include "bench/kernel/arm.h"

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/cuda_launch.h"

namespace tcgemm::bench {
namespace {

constexpr Nanos kBurstLimit = std::chrono::seconds(30);
constexpr size_t kFastestWorkspaceBytes = size_t{256} << 20;

class OurArm final : public Arm {
 public:
  OurArm(Device& device, Plan plan, std::string name, Pitch pitch)
      : device_(device), plan_(plan), name_(std::move(name)), pitch_(pitch) {}

  absl::Status Init() {
    TCGEMM_ASSIGN_OR_RETURN(stream_, device_.CreateStream());
    TCGEMM_ASSIGN_OR_RETURN(from_, device_.CreateEvent());
    TCGEMM_ASSIGN_OR_RETURN(to_, device_.CreateEvent());
    return absl::OkStatus();
  }
  // Lets the plan split K into sums that lie there.
  void SetWorkspace(MemoryBlock workspace) { workspace_ = std::move(workspace); }
  ArmKind kind() const override {
    return workspace_.bytes() > 0 ? ArmKind::kFastest : ArmKind::kOurs;
  }
  const std::string& name() const override { return name_; }
  std::string detail() const override { return plan_.ToString(); }
  Plan plan() const override { return plan_; }
  Pitch pitch() const override { return pitch_; }

  absl::StatusOr<double> Burst(const OperandSets& sets, int first_set, int launches) override {
    TCGEMM_RETURN_IF_ERROR(device_.Record(*stream_, *from_));
    for (int i = 0; i < launches; ++i) {
      GemmProblem problem = sets.problem(first_set + i, pitch_);
      problem.workspace = {workspace_.data(), workspace_.bytes()};
      TCGEMM_RETURN_IF_ERROR(device_.Launch(*stream_, plan_, {&problem, 1}));
    }
    TCGEMM_RETURN_IF_ERROR(device_.Record(*stream_, *to_));
    TCGEMM_RETURN_IF_ERROR(device_.Wait(*to_, kBurstLimit));
    TCGEMM_ASSIGN_OR_RETURN(const Nanos elapsed, device_.Elapsed(*from_, *to_));
    return std::chrono::duration<double>(elapsed).count();
  }

 private:
  Device& device_;
  const Plan plan_;
  const std::string name_;
  const Pitch pitch_;
  MemoryBlock workspace_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Event> from_;
  std::unique_ptr<Event> to_;
};

absl::StatusOr<std::unique_ptr<Arm>> MakeArm(Device& device, const Plan& plan, std::string name,
                                             Pitch pitch) {
  auto arm = std::make_unique<OurArm>(device, plan, std::move(name), pitch);
  TCGEMM_RETURN_IF_ERROR(arm->Init());
  return arm;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Arm>> CreateOurArm(Device& device, KernelId kernel,
                                                  const GpuTile* tile, const OperandSets& sets) {
  PlanLimits limits = device.plan_limits();
  limits.kernels = {kernel};
  const GemmProblem& problem = sets.problem(0);
  std::string name(KernelName(kernel));
  if (tile == nullptr) {
    TCGEMM_ASSIGN_OR_RETURN(const Plan plan, ChoosePlan(limits, {&problem, 1}));
    return MakeArm(device, plan, name, Pitch::kPadded);
  }
  const Plan plan = {.kernel = kernel,
                     .problems = 1,
                     .tile = *tile,
                     .tiles = static_cast<int>(TileCount(problem.shape(), *tile))};
  absl::StrAppend(&name, ":", tile->m, "x", tile->n, "x", tile->k, "s", tile->stages,
                  tile->blocks() > 1 ? absl::StrCat("c", tile->cluster, "x", tile->cluster_n) : "",
                  tile->swapped ? "_swapped" : "", tile->ping_pong ? "_ping_pong" : "");
  return MakeArm(device, plan, name, Pitch::kPadded);
}

absl::StatusOr<std::unique_ptr<Arm>> CreateFastestArm(Device& device, const OperandSets& sets) {
  TCGEMM_ASSIGN_OR_RETURN(MemoryBlock workspace, device.AllocateDevice(kFastestWorkspaceBytes));
  GemmProblem problem = sets.problem(0);
  problem.workspace = {workspace.data(), workspace.bytes()};
  TCGEMM_ASSIGN_OR_RETURN(const Plan plan, ChoosePlan(device.plan_limits(), {&problem, 1}));
  auto arm = std::make_unique<OurArm>(device, plan, "fastest", Pitch::kPadded);
  arm->SetWorkspace(std::move(workspace));
  TCGEMM_RETURN_IF_ERROR(arm->Init());
  return arm;
}

absl::StatusOr<std::unique_ptr<Arm>> CreateInPlaceArm(Device& device, const OperandSets& sets) {
  const GemmProblem& problem = sets.problem(0, Pitch::kDense);
  std::vector<KernelId> kernels = device.plan_limits().kernels;
  kernels.push_back(KernelId::kSimt);
  absl::Status why;
  for (const KernelId kernel : kernels) {
    PlanLimits limits = device.plan_limits();
    limits.kernels = {kernel};
    TCGEMM_ASSIGN_OR_RETURN(const Plan plan, ChoosePlan(limits, {&problem, 1}));
    why = CheckLaunch(device.plan_limits(), plan, {&problem, 1});
    if (!why.ok()) continue;
    return MakeArm(device, plan, absl::StrCat("in_place:", std::string(KernelName(kernel))),
                   Pitch::kDense);
  }
  return why;
}

}  // namespace tcgemm::bench
