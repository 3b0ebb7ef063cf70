#include "kernels/cpu_plain.h"

#include <cstring>
#include <vector>

#include "kernels/cpu_pack.h"
#include "kernels/cpu_vectors.h"

namespace tcgemm {
namespace {

// One call's operands: `a` is rows × chunk, `b` is chunk × block, `c` is rows × block, all dense.
struct Operands {
  const float* a;
  const float* b;
  float* c;
  int rows;
  int chunk;
  int block;
};

// kRows × kVectors·W accumulators stay in registers over the whole chunk.
template <int W, int kRows, int kVectors>
TCGEMM_ALWAYS_INLINE void MultiplyAddPiece(const float* a, const float* b, float* c,
                                           const Operands& operands) {
  typedef float Vector __attribute__((vector_size(W * sizeof(float)), aligned(4), may_alias));
  Vector sums[kRows][kVectors];
  for (int i = 0; i < kRows; ++i) {
    for (int v = 0; v < kVectors; ++v) {
      sums[i][v] = *reinterpret_cast<const Vector*>(c + int64_t{i} * operands.block + v * W);
    }
  }
  for (int k = 0; k < operands.chunk; ++k) {
    for (int v = 0; v < kVectors; ++v) {
      const Vector b_vector =
          *reinterpret_cast<const Vector*>(b + int64_t{k} * operands.block + v * W);
      for (int i = 0; i < kRows; ++i) {
        // Not one fused operation: -ffp-contract=off.
        const Vector products = b_vector * a[int64_t{i} * operands.chunk + k];
        sums[i][v] = sums[i][v] + products;
      }
    }
  }
  for (int i = 0; i < kRows; ++i) {
    for (int v = 0; v < kVectors; ++v) {
      *reinterpret_cast<Vector*>(c + int64_t{i} * operands.block + v * W) = sums[i][v];
    }
  }
}

// AVX-512 has 32 vector registers, the others 16.
template <int W>
TCGEMM_ALWAYS_INLINE void MultiplyAddPanelBody(const Operands& operands) {
  constexpr int kRows = W == 16 ? 8 : 4;
  constexpr int kVectors = 2;
  for (int j = 0; j < operands.block; j += kVectors * W) {
    int i = 0;
    for (; i + kRows <= operands.rows; i += kRows) {
      MultiplyAddPiece<W, kRows, kVectors>(operands.a + int64_t{i} * operands.chunk, operands.b + j,
                                           operands.c + int64_t{i} * operands.block + j, operands);
    }
    for (; i < operands.rows; ++i) {
      MultiplyAddPiece<W, 1, kVectors>(operands.a + int64_t{i} * operands.chunk, operands.b + j,
                                       operands.c + int64_t{i} * operands.block + j, operands);
    }
  }
}
static_assert(kCpuBlockExtents[0] % (2 * 16) == 0);

}  // namespace

TCGEMM_MULTIVERSION(static void, MultiplyAddPanel, (const Operands& operands), (operands))

namespace {

class PlainKernel final : public CpuInnerKernel {
 public:
  explicit PlainKernel(int workers) : workers_(workers) {}

  absl::Status SetBlock(int worker, const CpuBlock& block) override {
    Worker& mine = workers_[worker];
    mine.block_extent = block.block;
    const uint16_t* source = block.data;
    if (block.transposed) {
      const PackShape shape{block.chunk, block.chunk, block.block, block.chunk, block.block};
      PackColumns(source, shape, mine.turned.get(), mine.ignored.get());
      source = mine.turned.get();
    }
    Widen(source, int64_t{block.chunk} * block.block, mine.block.get());
    return absl::OkStatus();
  }

  absl::Status MultiplyAdd(int worker, const CpuPanel& panel, float* accumulators) override {
    Worker& mine = workers_[worker];
    Widen(panel.data, int64_t{panel.rows} * panel.chunk, mine.panel.get());
    MultiplyAddPanel({mine.panel.get(), mine.block.get(), accumulators, panel.rows, panel.chunk,
                      mine.block_extent});
    return absl::OkStatus();
  }

 private:
  struct Worker {
    ScratchArray<float> panel = AllocateScratch<float>(kCpuPanelRows * kCpuMaxChunk);
    ScratchArray<float> block = AllocateScratch<float>(kCpuMaxChunk * kCpuMaxBlock);
    ScratchArray<uint16_t> turned = AllocateScratch<uint16_t>(kCpuMaxChunk * kCpuMaxBlock);
    ScratchArray<uint8_t> ignored = AllocateScratch<uint8_t>(kCpuMaxChunk);
    int block_extent = 0;
  };
  std::vector<Worker> workers_;
};

}  // namespace

std::unique_ptr<CpuInnerKernel> CreatePlainKernel(int workers) {
  return std::make_unique<PlainKernel>(workers);
}

}  // namespace tcgemm
