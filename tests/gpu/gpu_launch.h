// Products on the GPU for tests: explicit kernels and tiles, NaN wherever nobody may read, and
// every byte that nobody may write compared afterwards.
#ifndef TCGEMM_TESTS_GPU_GPU_LAUNCH_H_
#define TCGEMM_TESTS_GPU_GPU_LAUNCH_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/device.h"
#include "kernels/gpu_tiles.h"
#include "kernels/plan.h"
#include "matrix/epilogue.h"
#include "matrix/matrix.h"
#include "matrix/reference.h"

namespace tcgemm {

inline constexpr size_t kMiB = size_t{1} << 20;

// op(A) and op(B) of one product, dense; seeded normals that a test may change.
struct Operands {
  Operands(const GemmShape& shape, uint64_t seed);
  uint16_t& A(int64_t i, int64_t k) { return a.data<uint16_t>()[i * shape.k + k]; }
  uint16_t& B(int64_t k, int64_t j) { return b.data<uint16_t>()[k * shape.n + j]; }
  Reference MakeReference() const;

  GemmShape shape;
  Matrix a;
  Matrix b;
};

// How a product lies in device memory.
struct Storage {
  bool a_transposed = false;
  bool b_transposed = false;
  DType output = DType::kFp32;
  int64_t extra_pitch = 0;  // elements beyond the device's pitch; a multiple of it

  std::string ToString() const;  // "NT bf16"
};
// The eight of layout × output.
std::vector<Storage> AllStorages();

struct GpuProduct {
  const Operands* operands = nullptr;
  Storage storage;
  Epilogue epilogue = {};  // its operands on the host
};

struct GpuResult {
  Matrix d;  // dense
  uint32_t nonfinite = 0;

  // Row by row; those of bf16 are not moved up.
  std::vector<uint32_t> Bits() const;
};

// Expects D within the bound of matrix/reference.h.
void ExpectWithinBound(const GpuResult& result, const Reference& reference,
                       const Epilogue& epilogue = {});
// Rows [row0, row0 + rows) of op(A) as operands of their own.
Operands SomeRows(const Operands& tall, int64_t row0, int64_t rows);
// The bits of rows [row0, row0 + rows) of D.
std::vector<uint32_t> RowsOf(const GpuResult& result, int64_t row0, int64_t rows);

// One kernel with one of its tiles.
struct KernelTile {
  KernelId kernel = KernelId::kSimt;
  GpuTile tile;
  bool grouped = true;  // takes launches of many problems

  // Of D in one tile of a block, or of a cluster of them.
  int64_t rows() const { return tile.swapped ? tile.n * tile.cluster_n : tile.m * tile.cluster; }
  int64_t columns() const { return tile.swapped ? tile.m * tile.cluster : tile.n * tile.cluster_n; }
  std::string ToString() const;  // "tma_mma_128x128x64s3": fit for a test's name
};
// What kGpuTiles and kWgmmaTiles hold, for every chip, and the simt kernel.
std::vector<KernelTile> AllKernelTiles();
void PrintTo(const KernelTile& kernel_tile, std::ostream* out);

// The GPU of the process. Not thread-safe.
class Gpu {
 public:
  // Null when there is none; WhyNot() then says why.
  static Gpu* Get();
  static std::string WhyNot();

  Device& device() { return *device_; }
  bool CanRun(const KernelTile& kernel_tile) const;
  // Those of AllKernelTiles() that this chip can run; the Tensor Core ones alone if so asked.
  std::vector<KernelTile> Runnable(bool tensor_cores_only) const;

  // One launch of all. A failure is a failure of the test, and the results hold NaN.
  std::vector<GpuResult> Multiply(const KernelTile& kernel_tile,
                                  absl::Span<const GpuProduct> products);
  // The same with ChoosePlan's kernel and tile, as the server does it.
  std::vector<GpuResult> MultiplyPlanned(absl::Span<const GpuProduct> products);
  GpuResult MultiplyOne(const KernelTile& kernel_tile, const Operands& operands,
                        const Storage& storage, const Epilogue& epilogue = {});

 private:
  Gpu() = default;
  static absl::StatusOr<std::unique_ptr<Gpu>> Create();
  std::vector<GpuResult> Run(const KernelTile* kernel_tile, absl::Span<const GpuProduct> products);
  absl::Status Launch(const KernelTile* kernel_tile, absl::Span<const GemmProblem> problems,
                      size_t bytes);

  std::unique_ptr<Device> device_;
  MemoryBlock before_;  // pinned: what the device's memory holds before the launch
  MemoryBlock after_;   // pinned
  MemoryBlock memory_;  // of the device
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Event> event_;
};

// A test that needs the GPU: skipped, by name, without one.
class GpuTest : public testing::Test {
 protected:
  void SetUp() override {
    if (Gpu::Get() == nullptr) GTEST_SKIP() << Gpu::WhyNot();
  }
  Gpu& gpu() { return *Gpu::Get(); }
};

// The same once per kernel and tile; skipped where the chip cannot run it.
class KernelTileTest : public testing::TestWithParam<KernelTile> {
 protected:
  void SetUp() override {
    if (Gpu::Get() == nullptr) GTEST_SKIP() << Gpu::WhyNot();
    if (!gpu().CanRun(GetParam())) GTEST_SKIP() << "not a tile of this chip";
  }
  Gpu& gpu() { return *Gpu::Get(); }
  GpuResult Multiply(const Operands& operands, const Storage& storage = {},
                     const Epilogue& epilogue = {}) {
    return gpu().MultiplyOne(GetParam(), operands, storage, epilogue);
  }
};

inline std::string KernelTileName(const testing::TestParamInfo<KernelTile>& info) {
  return info.param.ToString();
}

}  // namespace tcgemm

#endif  // TCGEMM_TESTS_GPU_GPU_LAUNCH_H_
