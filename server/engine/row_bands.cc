#include "server/engine/row_bands.h"

#include <algorithm>

#include "matrix/epilogue.h"

namespace tcgemm {
namespace {

constexpr double kBusBytesPerSecond = 50e9;
constexpr double kMostKernelToCopy = 2;

const void* At(const void* data, size_t bytes) {
  return static_cast<const std::byte*>(data) + bytes;
}

}  // namespace

std::vector<RowBand> PlanBands(const GemmProblem& problem, const OnDevice& on_device,
                               double flops_per_second) {
  if (on_device.d) return {};
  const int64_t m = problem.d.rows;
  const size_t bytes =
      static_cast<size_t>(m) * static_cast<size_t>(problem.d.cols) * DTypeSize(problem.d.dtype);
  const auto most = static_cast<int64_t>(std::min<size_t>(bytes / kLeastBandBytes, kMostBands));
  if (most < 2) return {};
  const double kernel_seconds = problem.shape().flops() / flops_per_second;
  const double copy_seconds = static_cast<double>(bytes) / kBusBytesPerSecond;
  if (kernel_seconds > kMostKernelToCopy * copy_seconds) return {};
  const int64_t even = (m + most - 1) / most;
  const int64_t rows = (even + kBandRowUnit - 1) / kBandRowUnit * kBandRowUnit;
  if (rows >= m) return {};
  std::vector<RowBand> bands;
  for (int64_t first = 0; first < m; first += rows) {
    bands.push_back({.first = first, .rows = std::min(rows, m - first)});
  }
  return bands;
}

GemmProblem BandOf(const GemmProblem& problem, const RowBand& band) {
  const auto first = static_cast<size_t>(band.first);
  GemmProblem part = problem;
  const size_t a_step = problem.a.transposed ? 1 : static_cast<size_t>(problem.a.ld);
  part.a.data = At(problem.a.data, first * a_step * DTypeSize(problem.a.dtype));
  (problem.a.transposed ? part.a.cols : part.a.rows) = band.rows;
  part.epilogue = EpilogueOfRows(problem.epilogue, {.m = problem.d.rows, .n = problem.d.cols},
                                 band.first, band.rows);
  const size_t d_row_bytes = static_cast<size_t>(problem.d.ld) * DTypeSize(problem.d.dtype);
  part.d.data = static_cast<std::byte*>(problem.d.data) + first * d_row_bytes;
  part.d.rows = band.rows;
  return part;
}

OnDevice BeforeBands(const GemmProblem& problem, OnDevice on_device) {
  if (!problem.a.transposed) on_device.a = true;
  return on_device;
}

OnDevice WithBand(const GemmProblem& problem, const OnDevice& on_device) {
  return {.a = on_device.a || problem.a.transposed, .b = true, .c = true, .bias = true, .d = true};
}

}  // namespace tcgemm
