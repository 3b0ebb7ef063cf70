#include "server/engine/stacking.h"

#include <bit>
#include <cmath>
#include <compare>
#include <map>

#include "matrix/bf16.h"

namespace tcgemm {
namespace {

EpilogueShape ShapeOfD(const GemmProblem& problem) {
  return {.m = problem.d.rows, .n = problem.d.cols};
}

bool HasColumnBias(const GemmProblem& problem) {
  return problem.epilogue.has_bias() && BiasIsColumn(problem.epilogue.bias, ShapeOfD(problem));
}

bool MayStack(const StackCandidate& job) {
  const GemmProblem& problem = job.problem;
  if (!job.on_device.b || job.on_device.a || job.on_device.d || problem.a.transposed) return false;
  if (problem.epilogue.reads_c() && job.on_device.c) return false;
  // A column comes with the rows, a row stays with B.
  return !problem.epilogue.has_bias() || HasColumnBias(problem) != job.on_device.bias;
}

// What jobs of one stack have in common. B fixes K and N: with its transposition nothing else is
// left to differ in the product.
struct StackKey {
  const void* b = nullptr;
  bool b_transposed = false;
  DType output = DType::kBf16;
  uint32_t alpha_bits = 0;  // so that -0 is not 0
  float beta = 0;
  DType c = DType::kBf16;
  Activation activation = Activation::kNone;
  bool has_bias = false;
  bool column_bias = false;
  DType bias = DType::kBf16;
  const void* bias_row = nullptr;

  auto operator<=>(const StackKey&) const = default;
};

StackKey KeyOf(const GemmProblem& problem) {
  const Epilogue& epilogue = problem.epilogue;
  StackKey key = {.b = problem.b.data,
                  .b_transposed = problem.b.transposed,
                  .output = problem.d.dtype,
                  .alpha_bits = std::bit_cast<uint32_t>(epilogue.alpha),
                  .activation = epilogue.activation};
  if (epilogue.reads_c()) {
    key.beta = epilogue.beta;
    key.c = epilogue.c.dtype;
  }
  if (epilogue.has_bias()) {
    key.has_bias = true;
    key.column_bias = HasColumnBias(problem);
    key.bias = epilogue.bias.dtype;
    if (!key.column_bias) key.bias_row = epilogue.bias.data;
  }
  return key;
}

// Of beta, which is finite.
struct LessKey {
  bool operator()(const StackKey& x, const StackKey& y) const { return (x <=> y) < 0; }
};

}  // namespace

std::vector<std::vector<size_t>> PlanStacks(absl::Span<const StackCandidate> jobs) {
  std::vector<std::vector<size_t>> stacks;
  std::map<StackKey, size_t, LessKey> stack_of;
  for (size_t i = 0; i < jobs.size(); ++i) {
    if (!MayStack(jobs[i])) {
      stacks.push_back({i});
      continue;
    }
    const auto [it, added] = stack_of.try_emplace(KeyOf(jobs[i].problem), stacks.size());
    if (added) stacks.emplace_back();
    stacks[it->second].push_back(i);
  }
  return stacks;
}

PlacedStack PlaceStack(absl::Span<const GemmProblem> members, int64_t pitch_alignment,
                       std::byte* at) {
  const bool column_bias = HasColumnBias(members[0]);
  PlacedStack stack;
  stack.product = members[0];
  Epilogue& epilogue = stack.product.epilogue;
  int64_t rows = 0;
  for (const GemmProblem& member : members) rows += member.a.rows;
  stack.product.a.rows = stack.product.d.rows = rows;
  if (epilogue.reads_c()) epilogue.c.rows = rows;
  if (column_bias) epilogue.bias.rows = rows;
  stack.product =
      PlaceInSlab(stack.product, pitch_alignment, at, {.b = true, .bias = !column_bias});
  const MatrixView& a = stack.product.a;
  const MutableMatrixView& d = stack.product.d;
  int64_t row = 0;
  for (const GemmProblem& member : members) {
    GemmProblem placed = stack.product;
    placed.a.rows = placed.d.rows = member.a.rows;
    placed.a.data = static_cast<const std::byte*>(a.data) + row * a.ld * DTypeSize(a.dtype);
    placed.d.data = static_cast<std::byte*>(d.data) + row * d.ld * DTypeSize(d.dtype);
    placed.epilogue =
        EpilogueOfRows(stack.product.epilogue, ShapeOfD(stack.product), row, member.a.rows);
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
    const bool column_bias = HasColumnBias(stack.product);
    at += SlabBytes(stack.product, pitch_alignment, {.b = true, .bias = !column_bias});
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

SplitWorkspace RestOfSlab(const MemoryBlock& slab, const StackCandidate& alone,
                          int64_t pitch_alignment) {
  const size_t flags = SlabFlagBytes(1);
  const size_t matrices = SlabBytes(alone.problem, pitch_alignment, alone.on_device);
  if (slab.bytes() <= flags || matrices >= slab.bytes() - flags) return {};
  return {slab.data() + flags + matrices, slab.bytes() - flags - matrices};
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
