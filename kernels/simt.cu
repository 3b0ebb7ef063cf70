// The baseline: fp32 multiply-adds on the ordinary cores, any layout, any edge, any alignment.
//
// A block of 256 threads computes a 64x64 tile of D, each thread 4x4 of it, 16 steps of K at a time
// through shared memory. It shows what Tensor Cores change, and where one of them is in doubt, who
// is right. Its sums are rounded differently (an FMA for every product), so its bits are its own:
// where Tensor Cores exist no plan names it.
#include "kernels/launch.h"
#include "kernels/tile/epilogue.h"
#include "kernels/tile/parameters.h"
#include "kernels/tile/raster.h"
#include "kernels/tile/tile_epilogue.h"

namespace tcgemm {
namespace {

constexpr GpuTile kTile = kSimtTile;
constexpr int kThreads = kTile.threads();
constexpr int kPerThread = 4;  // rows and columns of D
constexpr int kThreadRows = kTile.m / kPerThread;
static_assert(kThreads == kThreadRows * kThreadRows && kTile.m == kTile.n);

__device__ float FromBf16(uint16_t bits) {
  return __uint_as_float(static_cast<uint32_t>(bits) << 16);
}

// Where an operand's element (mn, k) lies.
struct ElementOf {
  const uint16_t* data;
  int64_t mn_stride;
  int64_t k_stride;
  int mn_end;
  int k_end;

  __device__ float operator()(int mn, int k) const {
    if (mn >= mn_end || k >= k_end) return 0;
    return FromBf16(data[mn * mn_stride + k * k_stride]);
  }
};

// The tile of one operand, K rows of mn. Neighbouring threads read along the direction of storage.
using SharedTile = float[kTile.k][kTile.m];

__device__ void LoadTile(SharedTile& tile, const ElementOf& operand, int mn, int k) {
  const bool along_k = operand.k_stride == 1;
  for (int i = static_cast<int>(threadIdx.x); i < kTile.m * kTile.k; i += kThreads) {
    const int tile_mn = along_k ? i / kTile.k : i % kTile.m;
    const int tile_k = along_k ? i % kTile.k : i / kTile.m;
    tile[tile_k][tile_mn] = operand(mn + tile_mn, k + tile_k);
  }
}

using Accumulators = float[kPerThread][kPerThread];

__device__ void MultiplyTiles(Accumulators& d, const SharedTile& a, const SharedTile& b, int row,
                              int column) {
#pragma unroll
  for (int k = 0; k < kTile.k; ++k) {
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
#pragma unroll
      for (int j = 0; j < kPerThread; ++j) {
        d[i][j] = fmaf(a[k][row + i * kThreadRows], b[k][column + j * kThreadRows], d[i][j]);
      }
    }
  }
}

// With the epilogue applied. True when it wrote a NaN or an Inf.
__device__ bool StoreElement(const LaunchProblem& problem, int row, int column, float value,
                             bool fp32) {
  if (row >= problem.m || column >= problem.n) return false;
  if (problem.has_epilogue) value = ApplyEpilogueAt(problem, {row, column}, value);
  const int64_t at = static_cast<int64_t>(row) * problem.ldd + column;
  if (fp32) {
    const uint32_t bits = Fp32Output(value);
    static_cast<uint32_t*>(problem.d)[at] = bits;
    return IsNonfiniteFp32(bits);
  }
  const uint32_t bits = Bf16Output(value);
  static_cast<uint16_t*>(problem.d)[at] = static_cast<uint16_t>(bits);
  return IsNonfiniteBf16(bits);
}

__device__ void ComputeTile(const LaunchProblem& problem, TilePosition origin, bool fp32) {
  __shared__ SharedTile a;
  __shared__ SharedTile b;
  const ElementOf a_element = {static_cast<const uint16_t*>(problem.a),
                               problem.a_transposed ? 1 : problem.lda,
                               problem.a_transposed ? problem.lda : 1, problem.m, problem.k};
  const ElementOf b_element = {static_cast<const uint16_t*>(problem.b),
                               problem.b_transposed ? problem.ldb : 1,
                               problem.b_transposed ? 1 : problem.ldb, problem.n, problem.k};
  const int row = static_cast<int>(threadIdx.x) / kThreadRows;
  const int column = static_cast<int>(threadIdx.x) % kThreadRows;
  Accumulators d = {};
  // k cannot overflow: it stays below problem.k until the last addition.
  for (int64_t k = 0; k < problem.k; k += kTile.k) {
    LoadTile(a, a_element, origin.row, static_cast<int>(k));
    LoadTile(b, b_element, origin.column, static_cast<int>(k));
    __syncthreads();
    MultiplyTiles(d, a, b, row, column);
    __syncthreads();
  }
  bool nonfinite = false;
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
#pragma unroll
    for (int j = 0; j < kPerThread; ++j) {
      nonfinite |= StoreElement(problem, origin.row + row + i * kThreadRows,
                                origin.column + column + j * kThreadRows, d[i][j], fp32);
    }
  }
  if (nonfinite && problem.nonfinite != nullptr) *problem.nonfinite = 1;
}

template <int PROBLEMS>
__global__ __launch_bounds__(kThreads) void SimtKernel(
    const __grid_constant__ KernelParameters<PROBLEMS, 0> parameters) {
  const int block = static_cast<int>(blockIdx.x);
  const int index = FindProblem(parameters.problems, parameters.problem_count, block);
  const LaunchProblem& problem = parameters.problems[index];
  ComputeTile(problem, TileOrigin<kTile>(problem, block), parameters.output_fp32);
}

template <int PROBLEMS>
cudaError_t Launch(const LaunchArguments& arguments, cudaStream_t stream) {
  const auto parameters = MakeParameters<PROBLEMS, 0>(arguments);
  SimtKernel<PROBLEMS><<<arguments.tile_count, kThreads, 0, stream>>>(parameters);
  return cudaGetLastError();
}

}  // namespace

cudaError_t LaunchSimt(const LaunchArguments& arguments, cudaStream_t stream) {
  if (!(arguments.tile == kTile) || arguments.problem_count < 1 ||
      arguments.problem_count > kMaxLaunchProblems) {
    return cudaErrorInvalidValue;
  }
  if (arguments.tile_count == 0) return cudaSuccess;
  if (arguments.problem_count == 1) return Launch<1>(arguments, stream);
  return Launch<kMaxLaunchProblems>(arguments, stream);
}

cudaError_t PrepareSimt() {
  cudaFuncAttributes attributes;
  const cudaError_t result = cudaFuncGetAttributes(&attributes, SimtKernel<1>);
  if (result != cudaSuccess) return result;
  return cudaFuncGetAttributes(&attributes, SimtKernel<kMaxLaunchProblems>);
}

}  // namespace tcgemm
