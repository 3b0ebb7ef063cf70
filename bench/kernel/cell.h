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

namespace tcgemm::bench {

struct Cell {
  GemmShape shape;
  bool a_transposed = false;
  bool b_transposed = false;
  DType output = DType::kBf16;

  std::string LayoutString() const;
  std::string ToString() const;  // "4096x4096x4096 NT bf16"
};

// "m,n,k,layout,out;…", or "squares" (512³ … 8192³, NT), "rungs" (1024³ … 8192³, NT) or "served"
// (87 cells: squares to 16384³, few rows and many against weights, layouts, odd sizes).
// INVALID_ARGUMENT otherwise.
absl::StatusOr<std::vector<Cell>> ParseCells(absl::string_view text);

// Seconds of one product, sustained and rested; 0 where not measured.
struct Rates {
  double sustained_seconds = 0;
  double rested_seconds = 0;
};

struct ArmResult {
  std::string arm;     // "cublaslt", "tma_mma", …
  std::string detail;  // the plan, or the algorithm
  Rates rates;
};

struct CellResult {
  Cell cell;
  std::vector<ArmResult> arms;  // the first is cublaslt
  std::string clocks;           // what nvidia-smi said while it was hot
};

}  // namespace tcgemm::bench

#endif  // TCGEMM_BENCH_KERNEL_CELL_H_
