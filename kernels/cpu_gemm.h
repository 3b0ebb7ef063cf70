// The loops around a CPU kernel: tiles of D, blocks of operands, one epilogue. Not public.
//
//   for each tile of D, in parallel              (all state below is private to one worker)
//     for each chunk of K, ascending
//       pack the tile's rows of op(A) into panels of kCpuPanelRows rows
//       for each block of columns: pack op(B), then panel × block → accumulators
//     epilogue: accumulators → D
//
// Why so: a worker owns a tile from first to last, so there is nothing to share, no barrier, and a
// grouped launch of many small products uses all threads. Why the bits never change: an element
// always meets the same panel height, the same cut of K (a function of K) and the same block width
// (a function of N); where its tile starts, who computes it and how the operands lay in memory
// reaches no inner kernel.
#ifndef TCGEMM_KERNELS_CPU_GEMM_H_
#define TCGEMM_KERNELS_CPU_GEMM_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/mutex.h"
#include "base/thread_pool.h"
#include "kernels/gemm.h"

namespace tcgemm {

// Rows of op(A) in one call of an inner kernel; the last panel is padded with zeros. Chosen by
// measurement (oneDNN bf16, one Zen 4 core): 16, 24, 48, 64 rows give 183, 183, 189, 194 GFLOPS at
// 1024³, but a row vector pays for the padding: 9, 11, 14, 17 ms at 1×4096×4096. 32 rows are out:
// see RowsAreAlike in cpu_onednn.cc.
inline constexpr int kCpuPanelRows = 16;

// A tail of K or N is padded with zeros, in both operands, to the smallest extent that holds it.
inline constexpr std::array<int, 4> kCpuChunkExtents = {32, 64, 128, 256};  // along K
inline constexpr std::array<int, 3> kCpuBlockExtents = {64, 128, 256};      // along N
inline constexpr int kCpuMaxChunk = kCpuChunkExtents.back();
inline constexpr int kCpuMaxBlock = kCpuBlockExtents.back();

// 64-byte aligned, freed by itself. Contents start as zeros, so every page is there.
struct FreeDeleter {
  void operator()(void* p) const;
};
template <typename T>
using ScratchArray = std::unique_ptr<T[], FreeDeleter>;
void* AllocateScratchBytes(size_t bytes);  // throws std::bad_alloc
template <typename T>
ScratchArray<T> AllocateScratch(size_t count) {
  return ScratchArray<T>(static_cast<T*>(AllocateScratchBytes(count * sizeof(T))));
}

// kCpuPanelRows × `chunk` elements of op(A), row-major, dense.
struct CpuPanel {
  const uint16_t* data;
  int chunk;  // one of kCpuChunkExtents
  int rows;   // that are not padding
  // Per row: does it hold a nonzero subnormal?
  const uint8_t* row_subnormal;
  bool any_subnormal;
};

// `chunk` × `block` elements of op(B), dense: row-major, or column-major when `transposed`.
struct CpuBlock {
  const uint16_t* data;
  int chunk;  // one of kCpuChunkExtents
  int block;  // one of kCpuBlockExtents
  bool transposed;
  bool any_subnormal;
};

// What differs between the CPU's kernels. `worker` says whose private memory to use: a call for
// one worker never runs at once with another call for that worker.
class CpuInnerKernel {
 public:
  virtual ~CpuInnerKernel() = default;
  // Makes `block` the right operand of this worker. Its data stays until the next such call.
  virtual absl::Status SetBlock(int worker, const CpuBlock& block) = 0;
  // accumulators[kCpuPanelRows × block] += panel · block, each row the same whatever the others.
  virtual absl::Status MultiplyAdd(int worker, const CpuPanel& panel, float* accumulators) = 0;
};

// Cuts launches into tiles and runs them. Not thread-safe. All memory is allocated at creation,
// here and in the inner kernels, except for the list of tiles, which grows to the largest launch.
class CpuGemm {
 public:
  // `runner` must outlive this.
  explicit CpuGemm(ParallelRunner* runner);
  ~CpuGemm();

  // `problems` are valid. The first error of the inner kernel; D is then unspecified.
  absl::Status Run(CpuInnerKernel& kernel, absl::Span<const GemmProblem> problems);

 private:
  struct Scratch;
  struct TileExtent {
    int panels;
    int blocks;
  };
  struct Tile;

  TileExtent ChooseTileExtent(absl::Span<const GemmProblem> problems) const;
  absl::Status RunTile(CpuInnerKernel& kernel, const GemmProblem& problem, const Tile& tile,
                       int worker);
  // The epilogue: from accumulators to D.
  void StoreTile(const GemmProblem& problem, const Tile& tile, int worker);
  absl::Status RunChunk(CpuInnerKernel& kernel, const GemmProblem& problem, const Tile& tile,
                        int64_t k0, int worker);

  ParallelRunner* const runner_;
  std::vector<std::unique_ptr<Scratch>> scratch_;  // one per worker
  std::vector<int64_t> first_tile_;                // of each problem, and the total at the end
};

}  // namespace tcgemm

#endif  // TCGEMM_KERNELS_CPU_GEMM_H_
