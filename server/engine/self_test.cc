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
};

struct Result {
  Case test;
  Matrix a;
  Matrix b;
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

int64_t RoundUp(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

std::vector<Case> CasesOf(const GemmShape& shape) {
  std::vector<Case> cases;
  for (const DType output : {DType::kBf16, DType::kFp32}) {
    for (int layout = 0; layout < 4; ++layout) {
      cases.push_back({shape, (layout & 1) != 0, (layout & 2) != 0, output});
    }
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
                      std::string(DTypeName(result.test.output)));
}

// Lays A, B and D out in a lease, as a decoded request is.
absl::StatusOr<std::unique_ptr<Result>> Prepare(Engine& engine, const Case& test, uint64_t seed) {
  const int64_t pitch = engine.device_info().pitch_alignment;
  const GemmShape& shape = test.shape;
  auto result = std::make_unique<Result>();
  result->test = test;
  result->a = RandomOperand(shape.m, shape.k, test.transpose_a, pitch, seed);
  result->b = RandomOperand(shape.k, shape.n, test.transpose_b, pitch, seed + 1);
  result->problem.a = test.transpose_a ? result->a.transposed_view() : result->a.view();
  result->problem.b = test.transpose_b ? result->b.transposed_view() : result->b.view();
  result->problem.d = {
      .rows = shape.m, .cols = shape.n, .ld = RoundUp(shape.n, pitch), .dtype = test.output};
  const size_t b_at = static_cast<size_t>(RoundUp(result->a.bytes(), 256));
  const size_t d_at = b_at + static_cast<size_t>(RoundUp(result->b.bytes(), 256));
  TCGEMM_ASSIGN_OR_RETURN(Lease lease,
                          engine.host_pool().TryLease(d_at + result->problem.d.span_bytes()));
  std::memcpy(lease.data(), result->a.data<std::byte>(), result->a.bytes());
  std::memcpy(lease.data() + b_at, result->b.data<std::byte>(), result->b.bytes());
  result->problem.a.data = lease.data();
  result->problem.b.data = lease.data() + b_at;
  result->problem.d.data = lease.data() + d_at;
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
  TCGEMM_ASSIGN_OR_RETURN(const Comparison comparison,
                          CompareWithReference(AsConst(result.problem.d), reference));
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
        seed += 2;
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
