// What kernel_bench measures: one product, and the ways to compute it.
#ifndef TCGEMM_BENCH_KERNEL_CELL_H_
#define TCGEMM_BENCH_KERNEL_CELL_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/gemm.h"
#include "kernels/plan.h"

namespace tcgemm::bench {

struct Cell {
  GemmShape shape;
  bool a_transposed = false;
  bool b_transposed = false;
  DType output = DType::kBf16;
  bool accumulate = false;  // D = product + C; C is another matrix of D's type

  std::string LayoutString() const;
  std::string OutputString() const;  // "bf16", "fp32" or "fp32+c"
  std::string ToString() const;      // "4096x4096x4096 NT bf16"
};

// "m,n,k,layout,out;…", or one of the lists: "squares" (512³ … 8192³, NT), "rungs" (1024³ … 8192³,
// NT), "served" (87 cells: squares to 16384³, few rows and many against weights, layouts, odd
// sizes), "few_rows" (those of them with M ≤ 64), "unaligned" (4095³ … 4097³, 4096³ beside them),
// "few_tiles" (long K), "accumulate" (fp32+c). INVALID_ARGUMENT otherwise.
absl::StatusOr<std::vector<Cell>> ParseCells(absl::string_view text);

// Seconds of one product, sustained and rested; 0 where not measured.
struct Rates {
  double sustained_seconds = 0;
  double rested_seconds = 0;
};

enum class ArmKind { kRival, kOurs, kFastest, kReadProbe };

struct ArmResult {
  ArmKind kind = ArmKind::kOurs;
  std::string arm;     // "cublaslt", "tma_mma", …
  std::string detail;  // the plan, or the algorithm
  Rates rates;
  Plan plan;  // of ours
};

struct CellResult {
  Cell cell;
  std::vector<ArmResult> arms;  // the first is cublaslt
  std::string clocks;           // what nvidia-smi said while it was hot
};

}  // namespace tcgemm::bench

#endif  // TCGEMM_BENCH_KERNEL_CELL_H_
