#include "kernels/cpu_gemm.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

#include "base/ceil_div.h"
#include "base/status_macros.h"
#include "kernels/cpu_epilogue.h"
#include "kernels/cpu_pack.h"
#include "matrix/dtype.h"

namespace tcgemm {
namespace {

// The largest tile of D, 512×512: 1 MiB of accumulators, about what a core's second cache holds.
// Half of it in either direction measured no faster at 1024³, and packs more.
constexpr int kMaxTilePanels = 512 / kCpuPanelRows;
constexpr int kMaxTileBlocks = 2;

// The smallest extent that holds what is left, or the largest one.
template <size_t kCount>
int CutExtent(const std::array<int, kCount>& extents, int64_t left) {
  for (int extent : extents) {
    if (left <= extent) return extent;
  }
  return extents.back();
}

}  // namespace

void FreeDeleter::operator()(void* p) const { std::free(p); }

void* AllocateScratchBytes(size_t bytes) {
  bytes = (bytes + 63) / 64 * 64;
  void* p = std::aligned_alloc(64, bytes);
  if (p == nullptr) throw std::bad_alloc();
  std::memset(p, 0, bytes);
  return p;
}

// Tile coordinates in panels and blocks; extents already cut at the edge of D.
struct CpuGemm::Tile {
  int64_t row0;
  int64_t col0;
  int64_t rows;
  int64_t cols;

  int panels() const { return static_cast<int>(CeilDiv(rows, kCpuPanelRows)); }
  int blocks() const { return static_cast<int>(CeilDiv(cols, kCpuMaxBlock)); }
};

struct CpuGemm::Scratch {
  static constexpr int kPanelElements = kCpuPanelRows * kCpuMaxChunk;
  static constexpr int kTileElements = kCpuPanelRows * kCpuMaxBlock;

  ScratchArray<uint16_t> panels = AllocateScratch<uint16_t>(kMaxTilePanels * kPanelElements);
  ScratchArray<uint16_t> block = AllocateScratch<uint16_t>(kCpuMaxChunk * kCpuMaxBlock);
  // Of (panel, block), each kCpuPanelRows × its block's extent, dense.
  ScratchArray<float> accumulators =
      AllocateScratch<float>(kMaxTilePanels * kMaxTileBlocks * kTileElements);
  std::array<uint8_t, kMaxTilePanels* kCpuPanelRows> row_subnormal = {};
  std::array<bool, kMaxTilePanels> panel_subnormal = {};
  std::array<uint8_t, std::max(kCpuMaxChunk, kCpuMaxBlock)> block_subnormal = {};

  float* Accumulators(int panel, int block_index) {
    return &accumulators[int64_t{block_index * kMaxTilePanels + panel} * kTileElements];
  }
};

CpuGemm::CpuGemm(ParallelRunner* runner) : runner_(runner) {
  for (int i = 0; i < runner_->width(); ++i) scratch_.push_back(std::make_unique<Scratch>());
}

CpuGemm::~CpuGemm() = default;

// Large tiles pack less; small ones feed more threads. Bits depend on neither.
CpuGemm::TileExtent CpuGemm::ChooseTileExtent(absl::Span<const GemmProblem> problems) const {
  constexpr TileExtent kExtents[] = {
      {kMaxTilePanels, kMaxTileBlocks}, {16, 2}, {16, 1}, {8, 1}, {4, 1}, {2, 1}};
  for (const TileExtent& extent : kExtents) {
    int64_t tiles = 0;
    for (const GemmProblem& problem : problems) {
      const GemmShape shape = problem.shape();
      tiles += CeilDiv(shape.m, int64_t{extent.panels} * kCpuPanelRows) *
               CeilDiv(shape.n, int64_t{extent.blocks} * kCpuMaxBlock);
    }
    if (tiles >= int64_t{4} * runner_->width()) return extent;
  }
  return {1, 1};
}

absl::Status CpuGemm::Run(CpuInnerKernel& kernel, absl::Span<const GemmProblem> problems) {
  const TileExtent extent = ChooseTileExtent(problems);
  const int64_t tile_rows = int64_t{extent.panels} * kCpuPanelRows;
  const int64_t tile_cols = int64_t{extent.blocks} * kCpuMaxBlock;
  first_tile_.assign(1, 0);
  for (const GemmProblem& problem : problems) {
    const GemmShape shape = problem.shape();
    first_tile_.push_back(first_tile_.back() +
                          CeilDiv(shape.m, tile_rows) * CeilDiv(shape.n, tile_cols));
  }
  Mutex mutex;
  absl::Status first_error;
  std::atomic<bool> failed = false;
  runner_->Run(first_tile_.back(), [&](int64_t index, int worker) {
    if (failed.load(std::memory_order_relaxed)) return;
    const auto next = std::upper_bound(first_tile_.begin(), first_tile_.end(), index);
    const size_t p = static_cast<size_t>(next - first_tile_.begin()) - 1;
    const GemmShape shape = problems[p].shape();
    // Neighbours down a column of tiles come one after the other: op(B) stays in the cache.
    const int64_t tiles_down = CeilDiv(shape.m, tile_rows);
    const int64_t in_problem = index - first_tile_[p];
    Tile tile;
    tile.row0 = in_problem % tiles_down * tile_rows;
    tile.col0 = in_problem / tiles_down * tile_cols;
    tile.rows = std::min(tile_rows, shape.m - tile.row0);
    tile.cols = std::min(tile_cols, shape.n - tile.col0);
    absl::Status status = RunTile(kernel, problems[p], tile, worker);
    if (status.ok()) return;
    failed.store(true, std::memory_order_relaxed);
    MutexLock lock(&mutex);
    first_error.Update(status);
  });
  return first_error;
}

absl::Status CpuGemm::RunTile(CpuInnerKernel& kernel, const GemmProblem& problem, const Tile& tile,
                              int worker) {
  Scratch& scratch = *scratch_[worker];
  for (int block = 0; block < tile.blocks(); ++block) {
    const int extent = CutExtent(kCpuBlockExtents, tile.cols - int64_t{block} * kCpuMaxBlock);
    for (int panel = 0; panel < tile.panels(); ++panel) {
      std::fill_n(scratch.Accumulators(panel, block), kCpuPanelRows * extent, 0.0f);
    }
  }
  const int64_t k = problem.summed_k();
  for (int64_t k0 = 0; k0 < k; k0 += kCpuMaxChunk) {
    TCGEMM_RETURN_IF_ERROR(RunChunk(kernel, problem, tile, k0, worker));
  }
  StoreTile(problem, tile, worker);
  return absl::OkStatus();
}

void CpuGemm::StoreTile(const GemmProblem& problem, const Tile& tile, int worker) {
  Scratch& scratch = *scratch_[worker];
  const Epilogue& epilogue = problem.epilogue;
  const EpilogueShape shape = {.m = problem.d.rows, .n = problem.d.cols};
  bool nonfinite = false;
  for (int64_t j0 = 0; j0 < tile.cols; j0 += kCpuMaxBlock) {
    const int64_t cols = std::min<int64_t>(kCpuMaxBlock, tile.cols - j0);
    const int extent = CutExtent(kCpuBlockExtents, tile.cols - j0);
    for (int64_t i = 0; i < tile.rows; ++i) {
      float* source = scratch.Accumulators(static_cast<int>(i / kCpuPanelRows),
                                           static_cast<int>(j0 / kCpuMaxBlock)) +
                      i % kCpuPanelRows * extent;
      if (!epilogue.is_default()) {
        ApplyEpilogueToRun(epilogue, shape,
                           {.row = tile.row0 + i, .column = tile.col0 + j0, .count = cols}, source);
      }
      const int64_t at = problem.d.IndexOf(tile.row0 + i, tile.col0 + j0);
      nonfinite |= problem.d.dtype == DType::kBf16
                       ? StoreBf16(source, cols, static_cast<uint16_t*>(problem.d.data) + at)
                       : StoreFp32(source, cols, static_cast<uint32_t*>(problem.d.data) + at);
    }
  }
  if (nonfinite && problem.nonfinite != nullptr) {
    // Other tiles may write the same 1 at the same time.
    std::atomic_ref<uint32_t>(*problem.nonfinite).store(1, std::memory_order_relaxed);
  }
}

absl::Status CpuGemm::RunChunk(CpuInnerKernel& kernel, const GemmProblem& problem, const Tile& tile,
                               int64_t k0, int worker) {
  Scratch& scratch = *scratch_[worker];
  const int64_t k_left = problem.shape().k - k0;
  const int chunk = CutExtent(kCpuChunkExtents, k_left);
  const int depth = static_cast<int>(std::min<int64_t>(chunk, k_left));

  CpuPanel panels[kMaxTilePanels];
  for (int p = 0; p < tile.panels(); ++p) {
    const int64_t row0 = int64_t{p} * kCpuPanelRows;
    const int rows = static_cast<int>(std::min<int64_t>(kCpuPanelRows, tile.rows - row0));
    uint16_t* data = &scratch.panels[int64_t{p} * Scratch::kPanelElements];
    uint8_t* subnormal = &scratch.row_subnormal[row0];
    const uint16_t* source =
        static_cast<const uint16_t*>(problem.a.data) + problem.a.IndexOf(tile.row0 + row0, k0);
    const PackShape shape{problem.a.ld, rows, depth, kCpuPanelRows, chunk};
    const bool any = problem.a.transposed ? PackColumns(source, shape, data, subnormal)
                                          : PackRows(source, shape, data, subnormal);
    panels[p] = {data, chunk, rows, subnormal, any};
  }

  for (int64_t j0 = 0; j0 < tile.cols; j0 += kCpuMaxBlock) {
    const int extent = CutExtent(kCpuBlockExtents, tile.cols - j0);
    const int cols = static_cast<int>(std::min<int64_t>(extent, tile.cols - j0));
    const uint16_t* source =
        static_cast<const uint16_t*>(problem.b.data) + problem.b.IndexOf(k0, tile.col0 + j0);
    // As stored: turning it is left to the inner kernel, which has to rearrange it anyway.
    const PackShape shape = problem.b.transposed
                                ? PackShape{problem.b.ld, cols, depth, extent, chunk}
                                : PackShape{problem.b.ld, depth, cols, chunk, extent};
    const bool any = PackRows(source, shape, scratch.block.get(), scratch.block_subnormal.data());
    TCGEMM_RETURN_IF_ERROR(
        kernel.SetBlock(worker, {scratch.block.get(), chunk, extent, problem.b.transposed, any}));
    for (int p = 0; p < tile.panels(); ++p) {
      float* accumulators = scratch.Accumulators(p, static_cast<int>(j0 / kCpuMaxBlock));
      TCGEMM_RETURN_IF_ERROR(kernel.MultiplyAdd(worker, panels[p], accumulators));
    }
  }
  return absl::OkStatus();
}

}  // namespace tcgemm
