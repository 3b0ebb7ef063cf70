#include "tests/gpu/gpu_launch.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <ostream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/gpu_plan.h"
#include "tests/gpu/gpu_arena.h"
#include "tests/gpu/stand_in_device.h"

namespace tcgemm {
namespace {

constexpr size_t kArenaBytes = size_t{160} << 20;
constexpr Nanos kLimit = std::chrono::seconds(60);

}  // namespace

Operands::Operands(const GemmShape& s, uint64_t seed)
    : shape(s), a(s.m, s.k, DType::kBf16), b(s.k, s.n, DType::kBf16) {
  FillNormal(a, 2 * seed);
  FillNormal(b, 2 * seed + 1);
}

Reference Operands::MakeReference() const { return ComputeReference(a.view(), b.view()).value(); }

Operands SomeRows(const Operands& tall, int64_t row0, int64_t rows) {
  Operands some({.m = rows, .n = tall.shape.n, .k = tall.shape.k}, 1);
  std::copy_n(tall.a.data<uint16_t>() + row0 * tall.shape.k, rows * tall.shape.k,
              some.a.data<uint16_t>());
  std::copy_n(tall.b.data<uint16_t>(), tall.shape.k * tall.shape.n, some.b.data<uint16_t>());
  return some;
}

std::string Storage::ToString() const {
  return absl::StrCat(a_transposed ? "T" : "N", b_transposed ? "T " : "N ",
                      std::string(DTypeName(output)));
}

std::vector<Storage> AllStorages() {
  std::vector<Storage> all;
  for (DType output : {DType::kFp32, DType::kBf16}) {
    for (int layout = 0; layout < 4; ++layout) {
      all.push_back(
          {.a_transposed = layout % 2 == 1, .b_transposed = layout / 2 == 1, .output = output});
    }
  }
  return all;
}

std::vector<uint32_t> GpuResult::Bits() const { return RowsOf(*this, 0, d.rows()); }

void ExpectWithinBound(const GpuResult& result, const Reference& reference,
                       const Epilogue& epilogue) {
  const absl::StatusOr<Comparison> comparison =
      CompareWithReference(result.d.view(), reference, epilogue);
  ASSERT_TRUE(comparison.ok()) << comparison.status();
  EXPECT_TRUE(comparison->ok) << comparison->ToString();
}

std::vector<uint32_t> RowsOf(const GpuResult& result, int64_t row0, int64_t rows) {
  const int64_t first = row0 * result.d.cols();
  const int64_t count = rows * result.d.cols();
  if (result.d.dtype() == DType::kBf16) {
    const auto* bits = result.d.data<uint16_t>() + first;
    return {bits, bits + count};
  }
  const auto* bits = result.d.data<uint32_t>() + first;
  return {bits, bits + count};
}

std::string KernelTile::ToString() const {
  return absl::StrCat(std::string(KernelName(kernel)), "_", tile.m, "x", tile.n, "x", tile.k, "s",
                      tile.stages,
                      tile.blocks() > 1 ? absl::StrCat("c", tile.cluster, "x", tile.cluster_n) : "",
                      tile.swapped ? "_swapped" : "", tile.ping_pong ? "_ping_pong" : "");
}

std::vector<KernelTile> AllKernelTiles() {
  std::vector<KernelTile> all = {{KernelId::kSimt, kSimtTile, true}};
  for (KernelId kernel : {KernelId::kCpAsyncMma, KernelId::kTmaMma}) {
    for (const GpuTileEntry& entry : kGpuTiles) all.push_back({kernel, entry.tile, entry.grouped});
  }
  for (const GpuTileEntry& entry : kWgmmaTiles) {
    all.push_back({KernelId::kTmaWgmma, entry.tile, entry.grouped});
  }
  return all;
}

void PrintTo(const KernelTile& kernel_tile, std::ostream* out) { *out << kernel_tile.ToString(); }

namespace {

struct Found {
  std::unique_ptr<Gpu> gpu;
  std::string why_not;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Gpu>> Gpu::Create() {
  std::unique_ptr<Gpu> gpu(new Gpu);
  TCGEMM_ASSIGN_OR_RETURN(gpu->device_, CreateDeviceUnderTest());
  Device& device = *gpu->device_;
  TCGEMM_ASSIGN_OR_RETURN(gpu->before_, device.AllocatePinned(kArenaBytes));
  TCGEMM_ASSIGN_OR_RETURN(gpu->after_, device.AllocatePinned(kArenaBytes));
  TCGEMM_ASSIGN_OR_RETURN(gpu->memory_, device.AllocateDevice(kArenaBytes));
  TCGEMM_ASSIGN_OR_RETURN(gpu->stream_, device.CreateStream());
  TCGEMM_ASSIGN_OR_RETURN(gpu->event_, device.CreateEvent());
  return gpu;
}

static Found& FindGpu(absl::StatusOr<std::unique_ptr<Gpu>> (*create)()) {
  static Found& found = *[create] {
    absl::StatusOr<std::unique_ptr<Gpu>> gpu = create();
    // Never freed: a context that dies while the process exits is nobody's error.
    return gpu.ok() ? new Found{*std::move(gpu), ""}
                    : new Found{nullptr, absl::StrCat("no GPU: ", gpu.status().message())};
  }();
  return found;
}

Gpu* Gpu::Get() { return FindGpu(&Create).gpu.get(); }
std::string Gpu::WhyNot() { return FindGpu(&Create).why_not; }

bool Gpu::CanRun(const KernelTile& kernel_tile) const {
  const std::vector<GpuTileEntry> usable =
      UsableTiles(device_->plan_limits(), kernel_tile.kernel, false);
  return std::any_of(usable.begin(), usable.end(),
                     [&](const GpuTileEntry& entry) { return entry.tile == kernel_tile.tile; });
}

std::vector<KernelTile> Gpu::Runnable(bool tensor_cores_only) const {
  std::vector<KernelTile> runnable;
  for (const KernelTile& kernel_tile : AllKernelTiles()) {
    if (tensor_cores_only && kernel_tile.kernel == KernelId::kSimt) continue;
    if (CanRun(kernel_tile)) runnable.push_back(kernel_tile);
  }
  return runnable;
}

absl::Status Gpu::Launch(const KernelTile* kernel_tile, absl::Span<const GemmProblem> problems,
                         size_t bytes) {
  Plan plan;
  if (kernel_tile == nullptr) {
    TCGEMM_ASSIGN_OR_RETURN(plan, ChoosePlan(device_->plan_limits(), problems));
  } else {
    plan.kernel = kernel_tile->kernel;
    plan.problems = static_cast<int>(problems.size());
    plan.tile = kernel_tile->tile;
    for (const GemmProblem& problem : problems) {
      plan.tiles += static_cast<int>(TileCount(problem.shape(), plan.tile));
    }
  }
  for (const GemmProblem& problem : problems) {
    TCGEMM_RETURN_IF_ERROR(ValidateProblem(problem));
  }
  Copy2d copy{.row_bytes = bytes, .rows = 1};
  copy.destination = memory_.data();
  copy.source = before_.data();
  TCGEMM_RETURN_IF_ERROR(device_->CopyIn(*stream_, copy));
  TCGEMM_RETURN_IF_ERROR(device_->Launch(*stream_, plan, problems));
  copy.destination = after_.data();
  copy.source = memory_.data();
  TCGEMM_RETURN_IF_ERROR(device_->CopyOut(*stream_, copy));
  TCGEMM_RETURN_IF_ERROR(device_->Record(*stream_, *event_));
  return device_->Wait(*event_, kLimit);
}

std::vector<GpuResult> Gpu::Run(const KernelTile* kernel_tile,
                                absl::Span<const GpuProduct> products) {
  Arena arena(before_, after_, memory_.data(), device_->info().pitch_alignment);
  std::vector<GemmProblem> problems;
  for (const GpuProduct& product : products) {
    problems.push_back(arena.Add(*product.operands, product.storage, product.epilogue));
  }
  const absl::Status status = Launch(kernel_tile, problems, arena.bytes());
  EXPECT_TRUE(status.ok()) << status << (kernel_tile ? " " + kernel_tile->ToString() : "");
  if (!status.ok()) arena.SpoilResults();
  std::vector<GpuResult> results;
  for (const GemmProblem& problem : problems) results.push_back(arena.Take(problem));
  if (status.ok()) arena.ExpectRestUntouched();
  return results;
}

std::vector<GpuResult> Gpu::Multiply(const KernelTile& kernel_tile,
                                     absl::Span<const GpuProduct> products) {
  return Run(&kernel_tile, products);
}

std::vector<GpuResult> Gpu::MultiplyPlanned(absl::Span<const GpuProduct> products) {
  return Run(nullptr, products);
}

GpuResult Gpu::MultiplyOne(const KernelTile& kernel_tile, const Operands& operands,
                           const Storage& storage, const Epilogue& epilogue) {
  const GpuProduct product{&operands, storage, epilogue};
  return std::move(Multiply(kernel_tile, {&product, 1}).front());
}

}  // namespace tcgemm
