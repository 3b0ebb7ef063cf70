// TMA + mbarrier + ldmatrix + mma.sync: cp_async_mma.cu with the copies given to the copy engine.
//
// A block computes one tile of D. One elected thread asks for boxes of A and B, STAGES − 1 steps of
// K ahead; the engine swizzles them, zero-fills what lies outside the operands and counts the bytes
// on the stage's `full` barrier. Every warp waits for it, multiplies, and arrives on the stage's
// `empty` barrier; when all have, the thread may ask for the next box there. So no thread spends
// registers or instructions on addresses of global memory, and no __syncthreads stands in the loop:
// warps drift apart by up to a step.
//
// docs/KERNELS.md walks through this file.
#include "kernels/launch.h"
#include "kernels/ptx/address.h"
#include "kernels/ptx/elect.h"
#include "kernels/ptx/mbarrier.h"
#include "kernels/ptx/tma.h"
#include "kernels/tile/dispatch.h"
#include "kernels/tile/fragments.h"
#include "kernels/tile/mma_block.h"
#include "kernels/tile/parameters.h"
#include "kernels/tile/raster.h"
#include "kernels/tile/ring.h"

namespace tcgemm {
namespace {

// Shared memory of a block: the ring of stages, each A then B, then the barriers.
template <GpuTile TILE>
struct SharedLayout {
  static constexpr uint32_t kStageBytes = TILE.stage_bytes();
  static constexpr uint32_t kABytes = TILE.m * TILE.k * 2;
  // Boxes must start on the period of the swizzle.
  static_assert(kABytes % 1024 == 0 && kStageBytes % 1024 == 0);

  uint32_t base = 0;  // shared address, 1024-byte aligned

  TCGEMM_DEVICE uint32_t a(int stage) const { return base + stage * kStageBytes; }
  TCGEMM_DEVICE uint32_t b(int stage) const { return a(stage) + kABytes; }
  TCGEMM_DEVICE uint32_t full(int stage) const { return barriers() + stage * 8; }
  TCGEMM_DEVICE uint32_t empty(int stage) const { return barriers() + (TILE.stages + stage) * 8; }

 private:
  TCGEMM_DEVICE uint32_t barriers() const { return base + TILE.stages * kStageBytes; }
};

template <GpuTile TILE>
TCGEMM_DEVICE void InitBarriers(const SharedLayout<TILE>& shared) {
  for (int stage = 0; stage < TILE.stages; ++stage) {
    // One arrival a phase: that of the thread that expects the bytes.
    ptx::MbarrierInit(shared.full(stage), 1);
    ptx::MbarrierInit(shared.empty(stage), TILE.warps_m * TILE.warps_n);
  }
  ptx::FenceMbarrierInit();
}

// One operand's part of a stage: EXTENT of mn from `mn` on, K of K from `k` on.
template <bool K_MAJOR, int EXTENT, int K>
TCGEMM_DEVICE void LoadOperand(uint32_t to, const TensorMap& map, int mn, int k, uint32_t barrier) {
  if constexpr (K_MAJOR) {
    ptx::TmaLoad2d(to, &map, {.inner = k, .outer = mn}, barrier);
  } else {
#pragma unroll
    for (int box = 0; box < EXTENT / kBoxElements; ++box) {
      ptx::TmaLoad2d(to + box * K * kBoxRowBytes, &map,
                     {.inner = mn + box * kBoxElements, .outer = k}, barrier);
    }
  }
}

// The loads of one tile: PIPE of mma_block.h. The elected thread asks for them, in order.
template <GpuTile TILE, bool A_K_MAJOR, bool B_K_MAJOR>
struct TileLoads {
  const SharedLayout<TILE>& shared;
  const LaunchMaps& maps;
  TilePosition origin;
  bool leader = false;
  int steps = 0;
  int next = 0;  // step to ask for
  RingPosition<TILE.stages> filled = {};
  RingPosition<TILE.stages> used = {};

  TCGEMM_DEVICE void Start(int all_steps) {
    steps = all_steps;
    leader = threadIdx.x < 32 && ptx::ElectOne();
    if (!leader) return;
    for (int stage = 0; stage < TILE.stages - 1; ++stage) LoadNext();
  }
  TCGEMM_DEVICE uint32_t Await() {
    // Into the stage that the step before this one has used.
    if (leader) LoadNext();
    ptx::MbarrierWait(shared.full(used.stage), used.parity);
    __syncwarp();
    return shared.a(used.stage);
  }
  TCGEMM_DEVICE void Release() {
    __syncwarp();
    if (threadIdx.x % 32 == 0) ptx::MbarrierArrive(shared.empty(used.stage));
    used.Advance();
  }

  TCGEMM_DEVICE void LoadNext() {
    if (next >= steps) return;
    // Round 0 finds empty stages; round r waits for phase r − 1 of `empty`.
    if (next >= TILE.stages) ptx::MbarrierWait(shared.empty(filled.stage), filled.parity ^ 1);
    const uint32_t full = shared.full(filled.stage);
    ptx::MbarrierArriveExpectTx(full, SharedLayout<TILE>::kStageBytes);
    LoadOperand<A_K_MAJOR, TILE.m, TILE.k>(shared.a(filled.stage), maps.a, origin.row,
                                           next * TILE.k, full);
    LoadOperand<B_K_MAJOR, TILE.n, TILE.k>(shared.b(filled.stage), maps.b, origin.column,
                                           next * TILE.k, full);
    ++next;
    filled.Advance();
  }
};

template <GpuTile TILE>
struct Pipe {
  const SharedLayout<TILE>& shared;
  const LaunchMaps& maps;

  template <bool A_K_MAJOR, bool B_K_MAJOR>
  TCGEMM_DEVICE TileLoads<TILE, A_K_MAJOR, B_K_MAJOR> Loads(TilePosition origin) const {
    return {shared, maps, origin};
  }
};

template <GpuTile TILE, int PROBLEMS>
TCGEMM_DEVICE void ComputeTile(const KernelParameters<PROBLEMS, PROBLEMS>& parameters) {
  extern __shared__ unsigned char dynamic_shared[];
  const SharedLayout<TILE> shared = {(ptx::SharedAddress(dynamic_shared) + 1023u) & ~1023u};
  const int block = static_cast<int>(blockIdx.x);
  const int index = FindProblem(parameters.problems, parameters.problem_count, block);
  const TileProblem& problem = parameters.problems[index];
  const TilePosition origin = TileOrigin<TILE>(problem, block);
  if (threadIdx.x == 0) InitBarriers(shared);
  __syncthreads();
  ComputeBlock<TILE>(Pipe<TILE>{shared, parameters.maps[index]}, problem, origin,
                     parameters.output_fp32);
}

// nvcc 13.0 cannot name a struct as a template argument of a kernel: hence the entry's index.
template <size_t ENTRY, int PROBLEMS>
__global__ __launch_bounds__(
    kGpuTiles[ENTRY].tile.threads(),
    kGpuTiles[ENTRY]
        .tile.blocks_by_registers()) void TmaMmaKernel(const __grid_constant__
                                                           KernelParameters<PROBLEMS, PROBLEMS>
                                                               parameters) {
  if constexpr (IsCompiledHere(kGpuTiles[ENTRY])) {
    ComputeTile<kGpuTiles[ENTRY].tile>(parameters);
  } else {
    __trap();
  }
}

// What dispatch.h needs to know of this kernel.
struct TmaMma {
  static constexpr auto kEntries = kGpuTiles;
  static constexpr int kMaxProblems = kMaxLaunchProblems;
  static constexpr bool kOverlapsPrevious = false;
  template <size_t ENTRY, int PROBLEMS>
  static constexpr auto kKernel = TmaMmaKernel<ENTRY, PROBLEMS>;
  template <int PROBLEMS>
  static KernelParameters<PROBLEMS, PROBLEMS> MakeParameters(const LaunchArguments& arguments) {
    return tcgemm::MakeParameters<PROBLEMS, PROBLEMS>(arguments);
  }
  static constexpr size_t SharedBytes(const GpuTile& tile) { return tile.shared_bytes(); }
  static constexpr int Threads(const GpuTile& tile) { return tile.threads(); }
  static int Blocks(const LaunchArguments& arguments) { return arguments.tile_count; }
};

}  // namespace

cudaError_t LaunchTmaMma(const LaunchArguments& arguments, cudaStream_t stream) {
  return LaunchTiled<TmaMma>(arguments, stream);
}

cudaError_t PrepareTmaMma() { return PrepareTiled<TmaMma>(); }

}  // namespace tcgemm
