#include "server/engine/stacking.h"

#include <cmath>
#include <map>
#include <tuple>

#include "matrix/bf16.h"

namespace tcgemm {
namespace {

bool MayStack(const StackCandidate& job) {
  return job.on_device.b && !job.on_device.a && !job.on_device.d && !job.problem.a.transposed;
}

}  // namespace

std::vector<std::vector<size_t>> PlanStacks(absl::Span<const StackCandidate> jobs) {
  // The matrix fixes K and N: with its transposition nothing else is left to differ.
  using Key = std::tuple<const void*, bool, DType>;
  std::vector<std::vector<size_t>> stacks;
  std::map<Key, size_t> stack_of;
  for (size_t i = 0; i < jobs.size(); ++i) {
    const GemmProblem& problem = jobs[i].problem;
    if (!MayStack(jobs[i])) {
      stacks.push_back({i});
      continue;
    }
    const auto [it, added] = stack_of.try_emplace(
        {problem.b.data, problem.b.transposed, problem.d.dtype}, stacks.size());
    if (added) stacks.emplace_back();
    stacks[it->second].push_back(i);
  }
  return stacks;
}

PlacedStack PlaceStack(absl::Span<const GemmProblem> members, int64_t pitch_alignment,
                       std::byte* at) {
  PlacedStack stack;
  stack.product = members[0];
  stack.product.a.rows = 0;
  for (const GemmProblem& member : members) stack.product.a.rows += member.a.rows;
  stack.product.d.rows = stack.product.a.rows;
  stack.product = PlaceInSlab(stack.product, pitch_alignment, at, {.b = true});
  const MatrixView& a = stack.product.a;
  const MutableMatrixView& d = stack.product.d;
  int64_t row = 0;
  for (const GemmProblem& member : members) {
    GemmProblem placed = stack.product;
    placed.a.rows = placed.d.rows = member.a.rows;
    placed.a.data = static_cast<const std::byte*>(a.data) + row * a.ld * DTypeSize(a.dtype);
    placed.d.data = static_cast<std::byte*>(d.data) + row * d.ld * DTypeSize(d.dtype);
    stack.members.push_back(placed);
    row += member.a.rows;
  }
  return stack;
}

PlacedBatch PlaceBatch(absl::Span<const StackCandidate> jobs, int64_t pitch_alignment,
                       std::byte* at) {
  PlacedBatch batch;
  batch.placed.resize(jobs.size());
  batch.stacks = PlanStacks(jobs);
  for (const std::vector<size_t>& members : batch.stacks) {
    if (members.size() == 1) {
      const auto& [problem, on_device, in_region] = jobs[members[0]];
      batch.problems.push_back(PlaceInSlab(problem, pitch_alignment, at, on_device));
      batch.placed[members[0]] = batch.problems.back();
      at += SlabBytes(problem, pitch_alignment, on_device);
      continue;
    }
    std::vector<GemmProblem> problems;
    problems.reserve(members.size());
    for (const size_t member : members) problems.push_back(jobs[member].problem);
    const PlacedStack stack = PlaceStack(problems, pitch_alignment, at);
    for (size_t i = 0; i < members.size(); ++i) batch.placed[members[i]] = stack.members[i];
    batch.problems.push_back(stack.product);
    at += SlabBytes(stack.product, pitch_alignment, {.b = true});
  }
  return batch;
}

PlacedBatch LeaveInPlace(absl::Span<const StackCandidate> jobs) {
  PlacedBatch batch;
  for (size_t i = 0; i < jobs.size(); ++i) {
    batch.placed.push_back(jobs[i].problem);
    batch.stacks.push_back({i});
  }
  batch.problems = batch.placed;
  return batch;
}

int CountStacked(const PlacedBatch& batch) {
  size_t stacked = 0;
  for (const std::vector<size_t>& members : batch.stacks) {
    if (members.size() > 1) stacked += members.size();
  }
  return static_cast<int>(stacked);
}

bool HasNonfinite(const MatrixView& matrix) {
  for (int64_t i = 0; i < matrix.rows; ++i) {
    for (int64_t j = 0; j < matrix.cols; ++j) {
      const int64_t at = i * matrix.ld + j;
      const float value = matrix.dtype == DType::kFp32
                              ? static_cast<const float*>(matrix.data)[at]
                              : ToFloat(static_cast<const Bf16*>(matrix.data)[at]);
      if (!std::isfinite(value)) return true;
    }
  }
  return false;
}

}  // namespace tcgemm
