// cp.async + ldmatrix + mma.sync: the Tensor Core kernel before TMA, for sm_80 and up.
//
// A block computes one tile of D. All its threads copy the tiles of A and B, 16 bytes each at a
// time, STAGES − 1 steps of K ahead, to the places where TMA would put them; the products are
// tma_mma.cu's (tile/mma_block.h). One __syncthreads a step says two things at once: everybody's
// copies for this step have landed, and everybody has read the stage that is filled next.
#include "kernels/launch.h"
#include "kernels/ptx/address.h"
#include "kernels/ptx/cp_async.h"
#include "kernels/tile/dispatch.h"
#include "kernels/tile/fragments.h"
#include "kernels/tile/mma_block.h"
#include "kernels/tile/parameters.h"
#include "kernels/tile/raster.h"
#include "kernels/tile/ring.h"
#include "kernels/tile/swizzle.h"

namespace tcgemm {
namespace {

// An operand as it lies in memory.
struct StoredOperand {
  const uint16_t* data;
  int64_t ld;
  int rows;
  int columns;
};

// Copies ROWS x COLUMNS elements of the operand from (row, column) on into a tile of shared memory
// with rows of COLUMNS elements. What lies outside the operand becomes zero, so that a tail of K
// adds nothing, whatever the padding holds. Every thread of the block takes one chunk of every
// kRowStep-th row: neighbours take neighbouring chunks, so a warp reads whole lines of memory.
template <int ROWS, int COLUMNS, int THREADS>
TCGEMM_DEVICE void CopyBox(uint32_t to, const StoredOperand& operand, int row, int column) {
  constexpr int kRowChunks = COLUMNS / kChunkElements;
  constexpr int kRowStep = THREADS / kRowChunks;
  // The swizzle repeats every 8 rows, so a thread's chunk stays in its place.
  static_assert(ROWS % kRowStep == 0 && kRowStep % 8 == 0);
  const int first_row = static_cast<int>(threadIdx.x) / kRowChunks;
  const int chunk = static_cast<int>(threadIdx.x) % kRowChunks;
  const int at_column = column + chunk * kChunkElements;
  const int left = operand.columns - at_column;
  const uint32_t bytes = left <= 0 ? 0 : left >= kChunkElements ? kChunkBytes : left * 2;
  const int rows_left = operand.rows - row - first_row;
  const uint16_t* from = operand.data + (row + first_row) * operand.ld + at_column;
  to += SwizzledOffset<COLUMNS * 2>(first_row, chunk);
#pragma unroll
  for (int i = 0; i < ROWS; i += kRowStep) {
    const uint32_t inside = i < rows_left ? bytes : 0;
    ptx::CpAsync16(to + i * COLUMNS * 2, inside > 0 ? from + i * operand.ld : operand.data, inside);
  }
}

template <bool K_MAJOR, int EXTENT, int K, int THREADS>
TCGEMM_DEVICE void CopyOperand(uint32_t to, const StoredOperand& operand, int mn, int k) {
  if constexpr (K_MAJOR) {
    CopyBox<EXTENT, K, THREADS>(to, operand, mn, k);
  } else {
#pragma unroll
    for (int box = 0; box < EXTENT / kBoxElements; ++box) {
      CopyBox<K, kBoxElements, THREADS>(to + box * K * kBoxRowBytes, operand, k,
                                        mn + box * kBoxElements);
    }
  }
}

// The loads of one tile: PIPE of mma_block.h.
template <GpuTile TILE, bool A_K_MAJOR, bool B_K_MAJOR>
struct TileLoads {
  uint32_t shared;
  StoredOperand a;
  StoredOperand b;
  TilePosition origin;
  int steps = 0;
  int next = 0;  // step to ask for
  RingPosition<TILE.stages> filled = {};
  RingPosition<TILE.stages> used = {};

  TCGEMM_DEVICE void Start(int all_steps) {
    steps = all_steps;
#pragma unroll 1
    for (int stage = 0; stage < TILE.stages - 1; ++stage) LoadNext();
  }
  TCGEMM_DEVICE uint32_t Await() {
    ptx::CpAsyncWait<TILE.stages - 2>();
    __syncthreads();
    LoadNext();
    return shared + used.stage * TILE.stage_bytes();
  }
  TCGEMM_DEVICE void Release() { used.Advance(); }

  // Always one group, an empty one after the last step: so the count of groups tells the step.
  TCGEMM_DEVICE void LoadNext() {
    if (next < steps) {
      const uint32_t stage = shared + filled.stage * TILE.stage_bytes();
      CopyOperand<A_K_MAJOR, TILE.m, TILE.k, TILE.threads()>(stage, a, origin.row, next * TILE.k);
      CopyOperand<B_K_MAJOR, TILE.n, TILE.k, TILE.threads()>(stage + TILE.m * TILE.k * 2, b,
                                                             origin.column, next * TILE.k);
    }
    ptx::CpAsyncCommit();
    ++next;
    filled.Advance();
  }
};

TCGEMM_DEVICE StoredOperand OperandA(const LaunchProblem& p) {
  return {static_cast<const uint16_t*>(p.a), p.lda, p.a_transposed ? p.k : p.m,
          p.a_transposed ? p.m : p.k};
}

TCGEMM_DEVICE StoredOperand OperandB(const LaunchProblem& p) {
  return {static_cast<const uint16_t*>(p.b), p.ldb, p.b_transposed ? p.n : p.k,
          p.b_transposed ? p.k : p.n};
}

template <GpuTile TILE>
struct Pipe {
  uint32_t shared;
  const LaunchProblem& problem;

  template <bool A_K_MAJOR, bool B_K_MAJOR>
  TCGEMM_DEVICE TileLoads<TILE, A_K_MAJOR, B_K_MAJOR> Loads(TilePosition origin) const {
    return {shared, OperandA(problem), OperandB(problem), origin};
  }
};

template <GpuTile TILE, int PROBLEMS>
TCGEMM_DEVICE void ComputeTile(const KernelParameters<PROBLEMS, 0>& parameters) {
  extern __shared__ unsigned char dynamic_shared[];
  const uint32_t shared = (ptx::SharedAddress(dynamic_shared) + 1023u) & ~1023u;
  const int block = static_cast<int>(blockIdx.x);
  const int index = FindProblem(parameters.problems, parameters.problem_count, block);
  const LaunchProblem& problem = parameters.problems[index];
  ComputeBlock<TILE>(Pipe<TILE>{shared, problem}, problem, TileOrigin<TILE>(problem, block),
                     parameters.output_fp32);
}

template <size_t ENTRY, int PROBLEMS>
__global__ __launch_bounds__(
    kGpuTiles[ENTRY].tile.threads(),
    kGpuTiles[ENTRY]
        .tile.blocks_by_registers()) void CpAsyncMmaKernel(const __grid_constant__
                                                               KernelParameters<PROBLEMS, 0>
                                                                   parameters) {
  if constexpr (IsCompiledHere(kGpuTiles[ENTRY])) {
    ComputeTile<kGpuTiles[ENTRY].tile>(parameters);
  } else {
    __trap();
  }
}

struct CpAsyncMma {
  static constexpr auto kEntries = kGpuTiles;
  static constexpr int kMaxProblems = kMaxLaunchProblems;
  static constexpr bool kOverlapsPrevious = false;
  template <size_t ENTRY, int PROBLEMS>
  static constexpr auto kKernel = CpAsyncMmaKernel<ENTRY, PROBLEMS>;
  template <int PROBLEMS>
  static KernelParameters<PROBLEMS, 0> MakeParameters(const LaunchArguments& arguments) {
    return tcgemm::MakeParameters<PROBLEMS, 0>(arguments);
  }
  static constexpr size_t SharedBytes(const GpuTile& tile) { return tile.shared_bytes(); }
  static constexpr int Threads(const GpuTile& tile) { return tile.threads(); }
  static int Blocks(const LaunchArguments& arguments) { return arguments.tile_count; }
};

}  // namespace

cudaError_t LaunchCpAsyncMma(const LaunchArguments& arguments, cudaStream_t stream) {
  return LaunchTiled<CpAsyncMma>(arguments, stream);
}

cudaError_t PrepareCpAsyncMma() { return PrepareTiled<CpAsyncMma>(); }

}  // namespace tcgemm
