#include "server/engine/self_test.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "matrix/matrix.h"
#include "matrix/reference.h"

namespace tcgemm {
namespace {

// Each side and each tail of the kernels' tiles: one element, less than one k16 block, whole tiles,
// one more and one less than a tile.
constexpr GemmShape kShapes[] = {{.m = 1, .n = 1, .k = 1},     {.m = 3, .n = 5, .k = 7},
                                 {.m = 64, .n = 64, .k = 64},  {.m = 65, .n = 33, .k = 129},
                                 {.m = 1, .n = 130, .k = 127}, {.m = 129, .n = 64, .k = 80}};

struct Case {
  GemmShape shape;
  bool transpose_a = false;
  bool transpose_b = false;
  DType output = DType::kBf16;
  // With C and all steps of an epilogue: a row of bias and GELU for bf16, a column and SiLU for
  // fp32.
  bool epilogue = false;
};

struct Result {
  Case test;
  Matrix a;
  Matrix b;
  Matrix c;
  Matrix bias;
  Epilogue epilogue;    // with c and bias
  GemmProblem problem;  // pointers into the outcome's memory
  JobOutcome outcome;
};

// Waits for `count` jobs. The jobs share it, so it may go before the last of them has let go.
struct Gate {
  Mutex mutex;
  CondVar cv;
  int count ABSL_GUARDED_BY(mutex) = 0;

  void Done() ABSL_LOCKS_EXCLUDED(mutex) {
    MutexLock lock(&mutex);
    --count;
    cv.NotifyAll();
  }
  void Wait() ABSL_LOCKS_EXCLUDED(mutex) {
    MutexLock lock(&mutex);
    while (count > 0) cv.Wait(&mutex);
  }
};

template <typename T>
T RoundUp(T value, T unit) {
  return (value + unit - 1) / unit * unit;
}

std::vector<Case> CasesOf(const GemmShape& shape) {
  std::vector<Case> cases;
  for (const DType output : {DType::kBf16, DType::kFp32}) {
    for (int layout = 0; layout < 4; ++layout) {
      cases.push_back({shape, (layout & 1) != 0, (layout & 2) != 0, output});
    }
    cases.push_back({.shape = shape, .transpose_b = true, .output = output, .epilogue = true});
  }
  return cases;
}

Matrix RandomOperand(int64_t rows, int64_t cols, bool transpose, int64_t pitch, uint64_t seed) {
  if (transpose) std::swap(rows, cols);
  Matrix matrix(rows, cols, RoundUp(cols, pitch), DType::kBf16);
  FillNormal(matrix, seed);
  return matrix;
}

std::string Describe(const Result& result) {
  return absl::StrCat(result.test.shape.ToString(), " ", LayoutName(result.problem), " ",
                      std::string(DTypeName(result.test.output)),
                      result.test.epilogue ? " with an epilogue" : "");
}

void MakeEpilogue(Result& result, int64_t pitch, uint64_t seed) {
  const GemmShape& shape = result.test.shape;
  const bool bf16 = result.test.output == DType::kBf16;
  result.c = Matrix(shape.m, shape.n, RoundUp(shape.n, pitch), bf16 ? DType::kFp32 : DType::kBf16);
  result.bias = bf16 ? Matrix(1, shape.n, DType::kBf16) : Matrix(shape.m, 1, DType::kFp32);
  FillNormal(result.c, seed);
  FillNormal(result.bias, seed + 1);
  result.epilogue = {.alpha = 0.25f,
                     .beta = -0.75f,
                     .c = result.c.view(),
                     .bias = result.bias.view(),
                     .activation = bf16 ? Activation::kGelu : Activation::kSilu};
}

// Lays the matrices out in a lease, as a decoded request is.
absl::StatusOr<std::unique_ptr<Result>> Prepare(Engine& engine, const Case& test, uint64_t seed) {
  const int64_t pitch = engine.device_info().pitch_alignment;
  const GemmShape& shape = test.shape;
  auto result = std::make_unique<Result>();
  result->test = test;
  result->a = RandomOperand(shape.m, shape.k, test.transpose_a, pitch, seed);
  result->b = RandomOperand(shape.k, shape.n, test.transpose_b, pitch, seed + 1);
  if (test.epilogue) MakeEpilogue(*result, pitch, seed + 2);
  GemmProblem& problem = result->problem;
  problem.a = test.transpose_a ? result->a.transposed_view() : result->a.view();
  problem.b = test.transpose_b ? result->b.transposed_view() : result->b.view();
  problem.epilogue = result->epilogue;
  problem.d = {
      .rows = shape.m, .cols = shape.n, .ld = RoundUp(shape.n, pitch), .dtype = test.output};
  MatrixView* const operands[] = {&problem.a, &problem.b, &problem.epilogue.c,
                                  &problem.epilogue.bias};
  size_t bytes = problem.d.span_bytes();
  for (const MatrixView* operand : operands) bytes += RoundUp(operand->span_bytes(), size_t{256});
  TCGEMM_ASSIGN_OR_RETURN(Lease lease, engine.host_pool().TryLease(bytes));
  std::byte* at = lease.data();
  for (MatrixView* operand : operands) {
    if (operand->span_bytes() == 0) continue;
    std::memcpy(at, operand->data, operand->span_bytes());
    operand->data = at;
    at += RoundUp(operand->span_bytes(), size_t{256});
  }
  problem.d.data = at;
  result->outcome.memory = std::move(lease);
  return result;
}

absl::Status Check(const Result& result) {
  if (!result.outcome.status.ok()) {
    return absl::Status(
        result.outcome.status.code(),
        absl::StrCat("self-test: ", Describe(result), ": ", result.outcome.status.message()));
  }
  const MatrixView a = result.test.transpose_a ? result.a.transposed_view() : result.a.view();
  const MatrixView b = result.test.transpose_b ? result.b.transposed_view() : result.b.view();
  TCGEMM_ASSIGN_OR_RETURN(const Reference reference, ComputeReference(a, b));
  TCGEMM_ASSIGN_OR_RETURN(
      const Comparison comparison,
      CompareWithReference(AsConst(result.problem.d), reference, result.epilogue));
  if (comparison.ok) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("self-test: ", Describe(result), " on ",
                                          result.outcome.kernel, ": ", comparison.ToString()));
}

absl::Status SubmitAll(Engine& engine, std::vector<std::unique_ptr<Result>>& results,
                       const std::shared_ptr<Gate>& gate) {
  for (const auto& result : results) {
    Job job;
    job.caller.identity = "self-test";
    job.problem = result->problem;
    job.memory = std::move(result->outcome.memory);
    job.done = [gate, result = result.get()](JobOutcome outcome) {
      result->outcome = std::move(outcome);
      gate->Done();
    };
    {
      MutexLock lock(&gate->mutex);
      ++gate->count;
    }
    if (const auto id = engine.Submit(std::move(job)); !id.ok()) {
      gate->Done();
      return id.status();
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status RunSelfTest(Engine& engine) {
  uint64_t seed = 1;
  const size_t at_once = static_cast<size_t>(std::min<int64_t>(4, engine.options().max_queue_jobs));
  for (const GemmShape& shape : kShapes) {
    const std::vector<Case> cases = CasesOf(shape);
    for (size_t first = 0; first < cases.size(); first += at_once) {
      std::vector<std::unique_ptr<Result>> results;
      const auto gate = std::make_shared<Gate>();
      for (size_t i = first; i < std::min(first + at_once, cases.size()); ++i) {
        TCGEMM_ASSIGN_OR_RETURN(auto result, Prepare(engine, cases[i], seed));
        seed += 4;
        results.push_back(std::move(result));
      }
      const absl::Status submitted = SubmitAll(engine, results, gate);
      gate->Wait();  // also after an error: those submitted before it still write to `results`
      TCGEMM_RETURN_IF_ERROR(submitted);
      for (const auto& result : results) TCGEMM_RETURN_IF_ERROR(Check(*result));
    }
  }
  return absl::OkStatus();
}

}  // namespace tcgemm
