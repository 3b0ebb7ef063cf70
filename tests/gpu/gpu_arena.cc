#include "tests/gpu/gpu_arena.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace tcgemm {
namespace {

constexpr size_t kGuard = 256;
constexpr size_t kAlignment = 256;

size_t RoundUp(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }

// Writes the transpose of `dense` (rows × cols) with the leading dimension ld.
void WriteTransposed(const Matrix& dense, uint16_t* out, int64_t ld) {
  const auto* source = dense.data<uint16_t>();
  constexpr int64_t kBlock = 32;  // both sides stay in the first cache
  for (int64_t i0 = 0; i0 < dense.rows(); i0 += kBlock) {
    for (int64_t j = 0; j < dense.cols(); ++j) {
      const int64_t end = std::min(i0 + kBlock, dense.rows());
      for (int64_t i = i0; i < end; ++i) out[j * ld + i] = source[i * dense.cols() + j];
    }
  }
}

}  // namespace

size_t Arena::Reserve(size_t bytes) {
  const size_t at = RoundUp(used_ + kGuard, kAlignment);
  const size_t end = RoundUp(at + bytes + kGuard, kAlignment);
  if (end > capacity_) {
    std::fprintf(stderr, "this test needs more than the %zu bytes of its arena\n", capacity_);
    std::abort();
  }
  std::memset(before_ + used_, 0xff, end - used_);
  used_ = end;
  return at;
}

size_t Arena::AddOperand(const Matrix& dense, bool transposed, const Storage& storage,
                         MatrixView& view) {
  view.rows = transposed ? dense.cols() : dense.rows();
  view.cols = transposed ? dense.rows() : dense.cols();
  view.ld =
      static_cast<int64_t>(RoundUp(std::max<int64_t>(1, view.cols), pitch_)) + storage.extra_pitch;
  view.dtype = DType::kBf16;
  view.transposed = transposed;
  // The last row's padding too: a kernel may read, though not use, whole pitches.
  const size_t at = Reserve(static_cast<size_t>(view.rows * view.ld) * 2);
  auto* out = reinterpret_cast<uint16_t*>(before_ + at);
  if (transposed) {
    WriteTransposed(dense, out, view.ld);
  } else {
    for (int64_t i = 0; i < dense.rows() && dense.cols() > 0; ++i) {
      std::memcpy(out + i * view.ld, dense.data<uint16_t>() + i * dense.cols(), dense.cols() * 2);
    }
  }
  return at;
}

void Arena::AddAddend(MatrixView& view, int64_t ld) {
  const size_t size = DTypeSize(view.dtype);
  // Not the last row's padding: nobody may read behind the last element.
  const size_t at = Reserve((static_cast<size_t>((view.rows - 1) * ld + view.cols)) * size);
  for (int64_t i = 0; i < view.rows; ++i) {
    std::memcpy(before_ + at + static_cast<size_t>(i * ld) * size,
                static_cast<const std::byte*>(view.data) + static_cast<size_t>(i * view.ld) * size,
                static_cast<size_t>(view.cols) * size);
  }
  view.data = device_ + at;
  view.ld = ld;
}

GemmProblem Arena::Add(const Operands& operands, const Storage& storage, const Epilogue& epilogue) {
  GemmProblem problem;
  problem.a.data = device_ + AddOperand(operands.a, storage.a_transposed, storage, problem.a);
  problem.b.data = device_ + AddOperand(operands.b, storage.b_transposed, storage, problem.b);
  const GemmShape& shape = operands.shape;
  const auto ld =
      static_cast<int64_t>(RoundUp(std::max<int64_t>(1, shape.n), pitch_)) + storage.extra_pitch;
  problem.epilogue = epilogue;
  if (epilogue.reads_c()) {
    AddAddend(problem.epilogue.c, ld);
  } else {
    problem.epilogue.c = {};
  }
  // A bias of any stride: a column's is that of a resident one, or of a dense one.
  if (epilogue.has_bias()) {
    const bool column = epilogue.bias.cols == 1;
    AddAddend(problem.epilogue.bias, column ? 1 + storage.extra_pitch : shape.n);
  }
  problem.d = {nullptr, shape.m, shape.n, ld, storage.output, false};
  const size_t bytes = static_cast<size_t>(shape.m * ld) * DTypeSize(storage.output);
  problem.d.data = device_ + Reserve(bytes);
  const size_t flag = Reserve(sizeof(uint32_t));
  std::memset(before_ + flag, 0, sizeof(uint32_t));
  problem.nonfinite = reinterpret_cast<uint32_t*>(device_ + flag);
  return problem;
}

std::byte* Arena::After(const void* device_pointer) const {
  return after_ + (static_cast<const std::byte*>(device_pointer) - device_);
}

GpuResult Arena::Take(const GemmProblem& problem) {
  const MutableMatrixView& d = problem.d;
  GpuResult result{.d = Matrix(d.rows, d.cols, d.dtype)};
  const size_t row_bytes = static_cast<size_t>(d.cols) * DTypeSize(d.dtype);
  for (int64_t i = 0; i < d.rows && row_bytes > 0; ++i) {
    std::byte* row = After(d.data) + static_cast<size_t>(i * d.ld) * DTypeSize(d.dtype);
    std::memcpy(result.d.data<std::byte>() + i * row_bytes, row, row_bytes);
    std::memset(row, 0xff, row_bytes);
  }
  std::byte* flag = After(problem.nonfinite);
  std::memcpy(&result.nonfinite, flag, sizeof(result.nonfinite));
  std::memset(flag, 0, sizeof(result.nonfinite));
  return result;
}

void Arena::ExpectRestUntouched() const {
  if (std::memcmp(before_, after_, used_) == 0) return;
  const size_t at = std::mismatch(before_, before_ + used_, after_).first - before_;
  ADD_FAILURE() << "something was written outside D, at byte " << at << " of " << used_;
}

void Arena::SpoilResults() { std::memset(after_, 0xff, used_); }

}  // namespace tcgemm
