// TMA + wgmma, warp-specialised: the kernel for Hopper. The steps from tma_mma.cu to here:
//
// 1. wgmma reads both operands from shared memory by itself: no ldmatrix, no fragments, and four
//    warps share one instruction. It runs on its own, so a warp can wait for the next stage while
//    the Tensor Cores work on this one.
// 2. One warpgroup only loads (one thread of it does), two only multiply. The loader's registers go
//    to the others (setmaxnreg), and loads never wait for products but through the ring.
// 3. Blocks stay and walk over tiles: the loader is already STAGES steps into the next tile while
//    the others write the last one, through shared memory and TMA stores.
// 4. Two blocks, one below the other in D, form a cluster: each loads half of their common tile of
//    B and the engine delivers it to both, which takes a third of the traffic off the L2 cache.
//
// 5. A launch overlaps the one before it: blocks start as soon as there is room for them, make
//    their barriers ready and fetch their tensor maps while the last tiles there are written.
//
// For few rows of A the operands are swapped, Dᵀ = Bᵀ·Aᵀ: the 64 rows that a wgmma wants are then
// columns of B, the many, and the host exchanges the two operands; only the way out differs.
//
// Where K is short the way out is much of a tile's time: the two warpgroups then take a tile each
// in turn, and one multiplies while the other writes.
//
// The sums are in tma_mma.cu's order, and the Tensor Cores give the same bits.
// docs/KERNELS.md walks through this file.
#include "kernels/launch.h"
#include "kernels/ptx/address.h"
#include "kernels/ptx/cluster.h"
#include "kernels/ptx/elect.h"
#include "kernels/ptx/grid_dependency.h"
#include "kernels/ptx/mbarrier.h"
#include "kernels/ptx/tma.h"
#include "kernels/ptx/warpgroup.h"
#include "kernels/ptx/wgmma.h"
#include "kernels/tile/dispatch.h"
#include "kernels/tile/fragments.h"
#include "kernels/tile/operand_load.h"
#include "kernels/tile/raster.h"
#include "kernels/tile/ring.h"
#include "kernels/tile/turns.h"
#include "kernels/tile/wgmma_block.h"
#include "kernels/tile/wgmma_store.h"

namespace tcgemm {
namespace {

// 384 threads are compiled for 168 registers each; the sum stays: 24 + 2·240 = 3·168. One warpgroup
// that multiplies has more than enough.
constexpr int kProducerRegisters = 24;
constexpr int kConsumerRegisters = 240;

// ---- The loader ----

template <GpuTile TILE, int PROBLEMS>
struct Loader {
  const SharedLayout<TILE>& shared;
  ClusterPlace<TILE> place;
  RingPosition<TILE.stages> position = {};
  bool first_round = true;

  template <bool K_MAJOR>
  using LoadA = OperandLoad<K_MAJOR, TILE.m, TILE.k, TILE.cluster_n>;
  template <bool K_MAJOR>
  using LoadB = OperandLoad<K_MAJOR, TILE.n, TILE.k, TILE.cluster>;

  template <bool A_K_MAJOR, bool B_K_MAJOR>
  TCGEMM_DEVICE void LoadTile(const LaunchMaps& maps, const TileProblem& problem,
                              TilePosition origin) {
    const bool slabs = problem.loads_slabs;
    const LoadA<A_K_MAJOR> load_a = {maps.a, place.Column(), place.BlocksOfA(), slabs};
    const LoadB<B_K_MAJOR> load_b = {maps.b, place.Row(), place.BlocksOfB(), slabs};
    constexpr uint32_t kBytes = (TILE.m + (B_K_MAJOR ? TILE.n : TILE.stage_columns())) * TILE.k * 2;
    for (int at = 0; at < problem.k; at += TILE.k) {
      // The consumers of all blocks that share an operand have left the stage.
      if (!first_round) ptx::MbarrierWait(shared.empty(position.stage), position.parity ^ 1);
      const uint32_t full = shared.full(position.stage);
      // Another block's part may be here already: the count of bytes may be negative.
      ptx::MbarrierArriveExpectTx(full, kBytes);
      load_a.Load(shared.a(position.stage), origin.row, at, full);
      load_b.Load(shared.b(position.stage), origin.column, at, full);
      position.Advance(shared.stages);
      if (position.stage == 0) first_round = false;
    }
  }

  TCGEMM_DEVICE void Run(const WgmmaParameters<PROBLEMS>& parameters) {
    for (Walk<TILE, PROBLEMS> walk = {parameters}; !walk.AtEnd(); walk.Advance()) {
      const int index = walk.Problem();
      const TileProblem& problem = parameters.problems[index];
      const LaunchMaps& maps = parameters.maps[index];
      const TilePosition origin = walk.Origin(problem, place);
      if (problem.a_transposed && problem.b_transposed) {
        LoadTile<false, true>(maps, problem, origin);
      } else if (problem.a_transposed) {
        LoadTile<false, false>(maps, problem, origin);
      } else if (problem.b_transposed) {
        LoadTile<true, true>(maps, problem, origin);
      } else {
        LoadTile<true, false>(maps, problem, origin);
      }
    }
  }

  // The block's first stages of A into the L2 cache, while the launch before this one still runs.
  TCGEMM_DEVICE void Prefetch(const WgmmaParameters<PROBLEMS>& parameters) const {
    const Walk<TILE, PROBLEMS> walk = {parameters};
    const int index = walk.Problem();
    const TileProblem& problem = parameters.problems[index];
    const TensorMap& map = parameters.maps[index].a;
    const int row = walk.Origin(problem, place).row;
    constexpr int kPrefetched = TILE.stages * TILE.k;
    const int end = problem.k < kPrefetched ? problem.k : kPrefetched;
    for (int at = 0; at < end; at += TILE.k) {
      if (problem.a_transposed) {
        LoadA<false>{map, place.Column(), 0, false}.Prefetch(row, at);
      } else {
        LoadA<true>{map, place.Column(), 0, problem.loads_slabs}.Prefetch(row, at);
      }
    }
  }
};

// ---- The warpgroups that multiply ----

template <GpuTile TILE, int PROBLEMS>
struct Consumer {
  static constexpr int kRows = TILE.m / WgmmaConsumers(TILE);
  static constexpr int kBlocks = kRows / 64;  // of 64 rows, one wgmma each
  static_assert(kRows % 64 == 0 && TILE.k % 64 == 0);

  const SharedLayout<TILE>& shared;
  ClusterPlace<TILE> place;
  int group;                               // of the two that multiply
  int thread;                              // in it
  int index = TILE.ping_pong ? 0 : group;  // among those of a tile
  RingPosition<TILE.stages> position = {};
  Turns<TILE.ping_pong> turns = {group};

  using Accumulators = WgmmaAccumulators<TILE>;

  template <bool A_K_MAJOR, bool B_K_MAJOR>
  TCGEMM_DEVICE void MultiplyStage(Accumulators& d) {
    constexpr uint32_t kBoxBytes = TILE.k * kBoxRowBytes;
    // Of A, from one block of 64 rows to the next.
    constexpr uint32_t kBlockBytes = A_K_MAJOR ? 64 * kBoxRowBytes : kBoxBytes;
    const uint32_t a = shared.a(position.stage) + index * kBlocks * kBlockBytes;
    const uint64_t a_descriptor = ptx::WgmmaDescriptor(a, kBoxBytes);
    const uint64_t b_descriptor = ptx::WgmmaDescriptor(shared.b(position.stage), kBoxBytes);
#pragma unroll
    for (int step = 0; step < TILE.k / 16; ++step) {
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
        ptx::WgmmaBf16<TILE.n>::template Multiply<A_K_MAJOR, B_K_MAJOR>(
            d[block],
            a_descriptor + ((block * kBlockBytes + StepOffset<A_K_MAJOR, TILE.m>(step)) >> 4),
            b_descriptor + (StepOffset<B_K_MAJOR, TILE.n>(step) >> 4));
      }
    }
  }

  // Bytes from a stage's first 16 of K to its `step`th: 32 of a row, and a slab of EXTENT rows for
  // each 64; or 16 rows.
  template <bool K_MAJOR, int EXTENT>
  static constexpr uint32_t StepOffset(int step) {
    if (!K_MAJOR) return step * 16 * kBoxRowBytes;
    return step / 4 * EXTENT * kBoxRowBytes + step % 4 * 32;
  }

  TCGEMM_DEVICE void Release(int stage) {
    const int lane = thread % 32;
    if (lane >= ClusterPlace<TILE>::kSharers) return;
    if constexpr (TILE.blocks() == 1) {
      ptx::MbarrierArrive(shared.empty(stage));
    } else {
      ptx::MbarrierArriveRemote(shared.empty(stage), place.Sharer(lane));
    }
  }

  template <bool A_K_MAJOR, bool B_K_MAJOR>
  TCGEMM_DEVICE void Multiply(Accumulators& d, int k, bool last_tile) {
    int previous = -1;  // stage whose products may still run
    for (int at = 0; at < k; at += TILE.k) {
      ptx::MbarrierWait(shared.full(position.stage), position.parity);
      FenceAccumulators(d);
      ptx::WgmmaFence();
      MultiplyStage<A_K_MAJOR, B_K_MAJOR>(d);
      ptx::WgmmaCommit();
      FenceAccumulators(d);
      ptx::WgmmaWait<1>();
      if (previous >= 0) Release(previous);
      previous = position.stage;
      position.Advance(shared.stages);
    }
    turns.Pass(last_tile);
    ptx::WgmmaWait<0>();
    FenceAccumulators(d);
    if (previous >= 0) Release(previous);
  }

  TCGEMM_DEVICE static void FenceAccumulators(Accumulators& d) {
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
      for (int i = 0; i < TILE.n / 2; ++i) ptx::WgmmaFenceRegister(d[block][i]);
    }
  }

  TCGEMM_DEVICE void Run(const WgmmaParameters<PROBLEMS>& parameters) {
    for (Walk<TILE, PROBLEMS> walk = {parameters}; !walk.AtEnd(); walk.Advance()) {
      const int number = walk.Problem();
      const TileProblem& problem = parameters.problems[number];
      if (!turns.IsMine()) {
        position.Skip(CeilDiv(problem.k, TILE.k));
        continue;
      }
      turns.Take(walk.AtFirst());
      const TilePosition origin = walk.Origin(problem, place);
      Accumulators d;
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
        for (int i = 0; i < TILE.n / 2; ++i) d[block][i] = 0;
      }
      if (problem.a_transposed && problem.b_transposed) {
        Multiply<false, true>(d, problem.k, walk.AtLast());
      } else if (problem.a_transposed) {
        Multiply<false, false>(d, problem.k, walk.AtLast());
      } else if (problem.b_transposed) {
        Multiply<true, true>(d, problem.k, walk.AtLast());
      } else {
        Multiply<true, false>(d, problem.k, walk.AtLast());
      }
      const TensorMap& map = parameters.d_maps[number];
      const WgmmaStore<TILE> out = {shared.epilogue(group), 1 + group, index, thread};
      if (problem.has_epilogue) out.Finish(d, problem, origin);
      const bool nonfinite = parameters.output_fp32
                                 ? out.template Store<true>(d, problem, map, origin)
                                 : out.template Store<false>(d, problem, map, origin);
      if (nonfinite && problem.nonfinite != nullptr) *problem.nonfinite = 1;
    }
    // Shared memory must live until the last store has read it.
    if (thread == 0) ptx::TmaStoreWait<0>();
  }
};

template <GpuTile TILE>
TCGEMM_DEVICE void InitBarriers(const SharedLayout<TILE>& shared) {
  for (int stage = 0; stage < shared.stages; ++stage) {
    ptx::MbarrierInit(shared.full(stage), 1);
    ptx::MbarrierInit(shared.empty(stage), TILE.warps_m * ClusterPlace<TILE>::kSharers);
  }
  ptx::FenceMbarrierInit();
}

template <GpuTile TILE, int PROBLEMS>
TCGEMM_DEVICE void ComputeTiles(const WgmmaParameters<PROBLEMS>& parameters) {
  extern __shared__ unsigned char dynamic_shared[];
  const bool b_is_k_major = TILE.swapped && parameters.problems[0].b_transposed;
  const SharedLayout<TILE> shared = {
      .base = (ptx::SharedAddress(dynamic_shared) + 1023u) & ~1023u,
      .stages = WgmmaStages(TILE, b_is_k_major),
      .stage_bytes = static_cast<uint32_t>(WgmmaStageBytes(TILE, b_is_k_major))};
  const ClusterPlace<TILE> place = {TILE.blocks() > 1 ? static_cast<int>(ptx::ClusterRank()) : 0};
  const LetIn next = WhenToLetIn<TILE>(parameters);
  if (next == LetIn::kAtOnce) ptx::AllowNextGrid();
  if (threadIdx.x == 0) {
    InitBarriers(shared);
    // Of the first problem, which most launches have alone.
    ptx::PrefetchTensorMap(&parameters.maps[0].a);
    ptx::PrefetchTensorMap(&parameters.maps[0].b);
  }
  // No block may send to another one's barriers before they are there.
  if constexpr (TILE.blocks() > 1) {
    ptx::ClusterSync();
  } else {
    __syncthreads();
  }
  const int warpgroup = static_cast<int>(threadIdx.x) / kWarpgroup;
  if (warpgroup == 0) {
    ptx::GiveRegisters<kProducerRegisters>();
    if (threadIdx.x < 32 && ptx::ElectOne()) {
      Loader<TILE, PROBLEMS> loader = {shared, place};
      if (TILE.swapped && next != LetIn::kLoading) loader.Prefetch(parameters);
      ptx::WaitForPreviousGrid();
      if (next == LetIn::kLoading) ptx::AllowNextGrid();
      loader.Run(parameters);
      if (next == LetIn::kLoaded) ptx::AllowNextGrid();
    }
  } else {
    // With K = 0 the consumers write without waiting for the loader.
    ptx::WaitForPreviousGrid();
    ptx::TakeRegisters<kConsumerRegisters>();
    Consumer<TILE, PROBLEMS>{shared, place, warpgroup - 1,
                             static_cast<int>(threadIdx.x) % kWarpgroup}
        .Run(parameters);
  }
  // Nor may one end while another still sends to it.
  if constexpr (TILE.blocks() > 1) {
    __syncwarp();
    ptx::ClusterSync();
  }
}

template <size_t ENTRY, int PROBLEMS>
__global__ __launch_bounds__(WgmmaThreads(kWgmmaTiles[ENTRY].tile), 1) void TmaWgmmaKernel(
    const __grid_constant__ WgmmaParameters<PROBLEMS> parameters) {
  ComputeTiles<kWgmmaTiles[ENTRY].tile>(parameters);
}

struct TmaWgmma {
  static constexpr auto kEntries = kWgmmaTiles;
  static constexpr int kMaxProblems = kMaxWgmmaProblems;
  static constexpr bool kOverlapsPrevious = true;
  template <size_t ENTRY, int PROBLEMS>
  static constexpr auto kKernel = TmaWgmmaKernel<ENTRY, PROBLEMS>;

  template <int PROBLEMS>
  static WgmmaParameters<PROBLEMS> MakeParameters(const LaunchArguments& arguments) {
    WgmmaParameters<PROBLEMS> parameters;
    for (int i = 0; i < arguments.problem_count; ++i) {
      parameters.maps[i] = arguments.maps[i];
      if (arguments.d_maps != nullptr) parameters.d_maps[i] = arguments.d_maps[i];
      parameters.problems[i] = arguments.problems[i];
    }
    parameters.problem_count = arguments.problem_count;
    parameters.tile_count = arguments.tile_count;
    parameters.output_fp32 = arguments.output_fp32;
    return parameters;
  }
  static constexpr size_t SharedBytes(const GpuTile& tile) { return WgmmaSharedBytes(tile); }
  static constexpr int Threads(const GpuTile& tile) { return WgmmaThreads(tile); }
  static int Blocks(const LaunchArguments& arguments) {
    const int clusters = ClustersAtOnce(arguments.multiprocessors, arguments.tile.blocks());
    return arguments.tile.blocks() *
           (arguments.tile_count < clusters ? arguments.tile_count : clusters);
  }
};

}  // namespace

cudaError_t LaunchTmaWgmma(const LaunchArguments& arguments, cudaStream_t stream) {
  return LaunchTiled<TmaWgmma>(arguments, stream);
}

cudaError_t PrepareTmaWgmma() { return PrepareTiled<TmaWgmma>(); }

}  // namespace tcgemm
