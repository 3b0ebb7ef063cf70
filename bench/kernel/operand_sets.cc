#include "bench/kernel/operand_sets.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "bench/kernel/device_data.h"

namespace tcgemm::bench {
namespace {

constexpr int kMaxSets = 256;

size_t RoundUp(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }

MatrixView ViewOf(int64_t op_rows, int64_t op_cols, bool transposed, int64_t pitch) {
  MatrixView view;
  view.rows = transposed ? op_cols : op_rows;
  view.cols = transposed ? op_rows : op_cols;
  view.ld = static_cast<int64_t>(RoundUp(view.cols, pitch));
  view.dtype = DType::kBf16;
  view.transposed = transposed;
  return view;
}

// Everything but the addresses. `pitch` in elements.
GemmProblem LayoutOf(const Cell& cell, int64_t pitch) {
  const GemmShape& shape = cell.shape;
  GemmProblem layout{.a = ViewOf(shape.m, shape.k, cell.a_transposed, pitch),
                     .b = ViewOf(shape.k, shape.n, cell.b_transposed, pitch)};
  const auto ldd = static_cast<int64_t>(RoundUp(shape.n, pitch));
  layout.d = {nullptr, shape.m, shape.n, ldd, cell.output, false};
  if (cell.accumulate) {
    layout.epilogue.beta = 1;
    layout.epilogue.c = {nullptr, shape.m, shape.n, ldd, cell.output, false};
  }
  return layout;
}

size_t BytesOf(const MatrixView& view) {
  return RoundUp(static_cast<size_t>(view.rows * view.ld) * DTypeSize(view.dtype), 256);
}

size_t BytesOf(const GemmProblem& layout) {
  const size_t c = layout.epilogue.beta == 0 ? 0 : BytesOf(layout.epilogue.c);
  return BytesOf(layout.a) + BytesOf(layout.b) + BytesOf(AsConst(layout.d)) + c;
}

GemmProblem PlaceAt(GemmProblem layout, std::byte*& at) {
  layout.a.data = std::exchange(at, at + BytesOf(layout.a));
  layout.b.data = std::exchange(at, at + BytesOf(layout.b));
  layout.d.data = std::exchange(at, at + BytesOf(AsConst(layout.d)));
  if (layout.epilogue.beta != 0) {
    layout.epilogue.c.data = std::exchange(at, at + BytesOf(layout.epilogue.c));
  }
  return layout;
}

absl::Status FillOperands(const GemmProblem& problem, uint64_t& seed) {
  std::vector<MatrixView> views = {problem.a, problem.b};
  if (problem.epilogue.reads_c()) views.push_back(problem.epilogue.c);
  for (const MatrixView& view : views) {
    void* const data = const_cast<void*>(view.data);
    const auto bytes = static_cast<int64_t>(BytesOf(view));
    const int error = view.dtype == DType::kFp32 ? FillNormalFp32OnDevice(data, bytes / 4, seed++)
                                                 : FillNormalOnDevice(data, bytes / 2, seed++);
    TCGEMM_RETURN_IF_ERROR(CudaStatus(error, "making random operands"));
  }
  return absl::OkStatus();
}

absl::Status CopyRows(const MatrixView& from, const MatrixView& to) {
  const size_t element = DTypeSize(from.dtype);
  return CudaStatus(
      cudaMemcpy2DAsync(const_cast<void*>(to.data), to.ld * element, from.data, from.ld * element,
                        from.cols * element, from.rows, cudaMemcpyDeviceToDevice, nullptr),
      "making dense operands");
}

}  // namespace

GemmProblem PaddedLayout(const Cell& cell) { return LayoutOf(cell, 64); }

absl::Status CudaStatus(int error, const char* what) {
  if (error == cudaSuccess) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat(what, ": ", cudaGetErrorString(static_cast<cudaError_t>(error))));
}

absl::StatusOr<OperandSets> OperandSets::Create(Device& device, const Cell& cell) {
  const GemmProblem padded = PaddedLayout(cell);
  const GemmProblem dense = LayoutOf(cell, 1);
  OperandSets sets;
  sets.padding_matters_ =
      padded.a.ld != dense.a.ld || padded.b.ld != dense.b.ld || padded.d.ld != dense.d.ld;
  const size_t operand_bytes = BytesOf(padded.a) + BytesOf(padded.b);
  const size_t wanted = (kRotatedBytes + operand_bytes - 1) / operand_bytes + 1;
  const size_t count = std::clamp<size_t>(wanted, 2, kMaxSets);
  const size_t set_bytes = BytesOf(padded) + (sets.padding_matters_ ? BytesOf(dense) : 0);
  const size_t reference_bytes = RoundUp(cell.shape.m * cell.shape.n * sizeof(float), 256);
  TCGEMM_ASSIGN_OR_RETURN(sets.memory_,
                          device.AllocateDevice(count * set_bytes + reference_bytes + 256));
  std::byte* at = sets.memory_.data();
  uint64_t seed = 1;
  for (size_t i = 0; i < count; ++i) {
    sets.padded_.push_back(PlaceAt(padded, at));
    TCGEMM_RETURN_IF_ERROR(FillOperands(sets.padded_.back(), seed));
    if (!sets.padding_matters_) continue;
    sets.dense_.push_back(PlaceAt(dense, at));
    TCGEMM_RETURN_IF_ERROR(CopyRows(sets.padded_.back().a, sets.dense_.back().a));
    TCGEMM_RETURN_IF_ERROR(CopyRows(sets.padded_.back().b, sets.dense_.back().b));
    if (!cell.accumulate) continue;
    TCGEMM_RETURN_IF_ERROR(CopyRows(sets.padded_.back().epilogue.c, sets.dense_.back().epilogue.c));
  }
  if (!sets.padding_matters_) sets.dense_ = sets.padded_;
  sets.reference_ = reinterpret_cast<float*>(at);
  sets.scratch_ = at + reference_bytes;
  TCGEMM_RETURN_IF_ERROR(CudaStatus(cudaDeviceSynchronize(), "making random operands"));
  return sets;
}

absl::Status OperandSets::Poison() const {
  for (const std::vector<GemmProblem>* problems : {&padded_, &dense_}) {
    const MutableMatrixView& d = problems->front().d;
    TCGEMM_RETURN_IF_ERROR(
        CudaStatus(cudaMemset(d.data, 0xff, BytesOf(AsConst(d))), "poisoning D"));
  }
  return CudaStatus(cudaDeviceSynchronize(), "poisoning D");
}

absl::Status OperandSets::CheckAgainstReference(Pitch pitch) const {
  const GemmProblem& checked = problem(0, pitch);
  return ExpectNear(checked.d, {reference_, problem(0, Pitch::kDense).d.ld}, checked.shape().k,
                    scratch_);
}

absl::Status ExpectNear(const MutableMatrixView& d, const FloatMatrix& reference, int64_t k,
                        void* scratch) {
  float difference = 0;
  TCGEMM_RETURN_IF_ERROR(CudaStatus(
      LargestDifference({d.data, d.rows, d.cols, d.ld, d.dtype == DType::kFp32},
                        {reference.data, d.rows, d.cols, reference.ld, true}, scratch, difference),
      "comparing with cuBLAS"));
  // Normal data: elements are about √k, the largest of 10^8 six times that. bf16 rounds by 2^-9 of
  // it; two fp32 sums in different orders differ by far less than 2^-12 of Σ|a·b| ≈ 0.64·k.
  const auto terms = static_cast<double>(k);
  const double rounding = d.dtype == DType::kBf16 ? 8 * std::sqrt(terms) * 0x1p-8 : 0;
  const double tolerance = rounding + terms * 0x1p-16 + 1e-6;
  if (difference <= tolerance) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat("D differs from cuBLAS's by ", difference, ", more than ", tolerance));
}

}  // namespace tcgemm::bench
