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
#include <utility>

#include "kernels/launch.h"
#include "kernels/ptx/address.h"
#include "kernels/ptx/elect.h"
#include "kernels/ptx/mbarrier.h"
#include "kernels/ptx/tma.h"
#include "kernels/tile/dispatch.h"
#include "kernels/tile/fragments.h"
#include "kernels/tile/parameters.h"
#include "kernels/tile/raster.h"
#include "kernels/tile/ring.h"
#include "kernels/tile/warp_tile.h"

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

// The elected thread's work: the loads of one block, in order.
template <GpuTile TILE, bool A_K_MAJOR, bool B_K_MAJOR>
struct Producer {
  const SharedLayout<TILE>& shared;
  const LaunchMaps& maps;
  TilePosition origin;
  int steps;
  int next = 0;  // step to ask for
  RingPosition<TILE.stages> position = {};

  TCGEMM_DEVICE void LoadNext() {
    if (next >= steps) return;
    // Round 0 finds empty stages; round r waits for phase r − 1 of `empty`.
    if (next >= TILE.stages) ptx::MbarrierWait(shared.empty(position.stage), position.parity ^ 1);
    const uint32_t full = shared.full(position.stage);
    ptx::MbarrierArriveExpectTx(full, SharedLayout<TILE>::kStageBytes);
    LoadOperand<A_K_MAJOR, TILE.m, TILE.k>(shared.a(position.stage), maps.a, origin.row,
                                           next * TILE.k, full);
    LoadOperand<B_K_MAJOR, TILE.n, TILE.k>(shared.b(position.stage), maps.b, origin.column,
                                           next * TILE.k, full);
    ++next;
    position.Advance();
  }
};

template <GpuTile TILE, bool A_K_MAJOR, bool B_K_MAJOR>
TCGEMM_DEVICE void Multiply(const SharedLayout<TILE>& shared, const LaunchMaps& maps,
                            const TileProblem& problem, TilePosition origin, WarpTile<TILE>& tile) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const TilePosition mine = WarpTile<TILE>::Origin(warp);
  const uint32_t a_lane = LaneOffset<Operand::kA, A_K_MAJOR, TILE.k>(mine.row, lane);
  const uint32_t b_lane = LaneOffset<Operand::kB, B_K_MAJOR, TILE.k>(mine.column, lane);
  const int steps = CeilDiv(problem.k, TILE.k);
  Producer<TILE, A_K_MAJOR, B_K_MAJOR> producer = {shared, maps, origin, steps};
  const bool leader = warp == 0 && ptx::ElectOne();
  if (leader) {
    for (int stage = 0; stage < TILE.stages - 1; ++stage) producer.LoadNext();
  }
  RingPosition<TILE.stages> position;
  for (int step = 0; step < steps; ++step, position.Advance()) {
    // Into the stage that the step before this one has used.
    if (leader) producer.LoadNext();
    ptx::MbarrierWait(shared.full(position.stage), position.parity);
    __syncwarp();
    tile.template MultiplyStage<A_K_MAJOR, B_K_MAJOR>(shared.a(position.stage) + a_lane,
                                                      shared.b(position.stage) + b_lane);
    __syncwarp();
    if (lane == 0) ptx::MbarrierArrive(shared.empty(position.stage));
  }
}

template <GpuTile TILE, int PROBLEMS>
TCGEMM_DEVICE void ComputeTile(const KernelParameters<PROBLEMS, PROBLEMS>& parameters) {
  extern __shared__ unsigned char dynamic_shared[];
  const SharedLayout<TILE> shared = {(ptx::SharedAddress(dynamic_shared) + 1023u) & ~1023u};
  const int block = static_cast<int>(blockIdx.x);
  const int index = FindProblem(parameters.problems, parameters.problem_count, block);
  const TileProblem& problem = parameters.problems[index];
  const LaunchMaps& maps = parameters.maps[index];
  const TilePosition origin = TileOrigin<TILE>(problem, block);
  if (threadIdx.x == 0) InitBarriers(shared);
  __syncthreads();

  WarpTile<TILE> tile;
  // Uniform for the block: four loops in one kernel, so that a batch may mix layouts.
  if (problem.a_transposed && problem.b_transposed) {
    Multiply<TILE, false, true>(shared, maps, problem, origin, tile);
  } else if (problem.a_transposed) {
    Multiply<TILE, false, false>(shared, maps, problem, origin, tile);
  } else if (problem.b_transposed) {
    Multiply<TILE, true, true>(shared, maps, problem, origin, tile);
  } else {
    Multiply<TILE, true, false>(shared, maps, problem, origin, tile);
  }
  tile.Store(problem, origin, static_cast<int>(threadIdx.x), parameters.output_fp32);
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
