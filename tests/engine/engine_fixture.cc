#include "tests/engine/engine_fixture.h"

#include <cstring>
#include <thread>
#include <utility>

#include "gtest/gtest.h"
#include "matrix/matrix.h"

namespace tcgemm {
namespace {

int64_t RoundUp(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

Matrix Operand(int64_t rows, int64_t cols, bool transpose, int64_t pitch, const JobSpec& spec,
               uint64_t seed) {
  if (transpose) std::swap(rows, cols);
  Matrix matrix(rows, cols, RoundUp(cols, pitch), DType::kBf16);
  if (spec.nan_filled) {
    FillBytes(matrix, 0xff);
  } else {
    FillNormal(matrix, seed);
  }
  return matrix;
}

std::vector<std::byte> DenseBytes(const MatrixView& view) {
  const size_t row_bytes = static_cast<size_t>(view.cols) * DTypeSize(view.dtype);
  const size_t pitch = static_cast<size_t>(view.ld) * DTypeSize(view.dtype);
  std::vector<std::byte> bytes(row_bytes * static_cast<size_t>(view.rows));
  for (size_t row = 0; row < static_cast<size_t>(view.rows); ++row) {
    std::memcpy(bytes.data() + row * row_bytes,
                static_cast<const std::byte*>(view.data) + row * pitch, row_bytes);
  }
  return bytes;
}

}  // namespace

void Inbox::Put(int tag, Ended ended) {
  MutexLock lock(&mutex_);
  ended_[tag].push_back(std::move(ended));
  cv_.NotifyAll();
}

Ended Inbox::Wait(int tag) {
  MutexLock lock(&mutex_);
  while (ended_[tag].empty()) cv_.Wait(&mutex_);
  return ended_[tag].front();
}

int Inbox::count(int tag) const {
  MutexLock lock(&mutex_);
  const auto it = ended_.find(tag);
  return it == ended_.end() ? 0 : static_cast<int>(it->second.size());
}

int Inbox::total() const {
  MutexLock lock(&mutex_);
  int total = 0;
  for (const auto& [tag, ended] : ended_) total += static_cast<int>(ended.size());
  return total;
}

EpilogueData EpilogueDataOf(const JobSpec& spec) {
  return EpilogueData(*spec.epilogue, {.m = spec.shape.m, .n = spec.shape.n}, 0, 7 * spec.seed);
}

namespace {

// Copies the operand into `lease`, from `at` on, and moves its view there.
void PutOperand(MatrixView& view, std::byte* lease, size_t& at) {
  const size_t bytes = view.span_bytes();
  if (bytes == 0) return;
  std::memcpy(lease + at, view.data, bytes);
  view.data = lease + at;
  at += RoundUp(static_cast<int64_t>(bytes), 64);
}

}  // namespace

Job MakeJob(Engine& engine, const JobSpec& spec, Inbox& inbox, int tag) {
  const int64_t pitch = engine.device_info().pitch_alignment;
  const GemmShape& shape = spec.shape;
  const Matrix a = Operand(shape.m, shape.k, spec.transpose_a, pitch, spec, 2 * spec.seed);
  const Matrix b = Operand(shape.k, shape.n, spec.transpose_b, pitch, spec, 2 * spec.seed + 1);
  Job job;
  job.deadline = spec.deadline;
  job.fastest = spec.fastest;
  job.problem.a = spec.transpose_a ? a.transposed_view() : a.view();
  job.problem.b = spec.transpose_b ? b.transposed_view() : b.view();
  std::optional<EpilogueData> data;
  if (spec.epilogue.has_value()) {
    data.emplace(EpilogueDataOf(spec));
    job.problem.epilogue = data->View();
  }
  job.problem.d = {
      .rows = shape.m, .cols = shape.n, .ld = RoundUp(shape.n, pitch), .dtype = spec.output};
  Epilogue& epilogue = job.problem.epilogue;
  MatrixView* const operands[] = {&job.problem.a, &job.problem.b, &epilogue.c, &epilogue.bias};
  int64_t bytes = static_cast<int64_t>(job.problem.d.span_bytes());
  for (const MatrixView* operand : operands) {
    bytes += RoundUp(static_cast<int64_t>(operand->span_bytes()), 64);
  }
  auto lease = engine.host_pool().TryLease(static_cast<size_t>(bytes));
  if (!lease.ok()) {
    ADD_FAILURE() << lease.status();
    return job;
  }
  job.memory = std::move(*lease);
  size_t at = 0;
  for (MatrixView* operand : operands) PutOperand(*operand, job.memory.data(), at);
  job.problem.d.data = job.memory.data() + at;
  job.done = [&inbox, tag, d = job.problem.d](JobOutcome outcome) {
    Ended ended{.status = outcome.status,
                .had_memory = static_cast<bool>(outcome.memory),
                .timings = outcome.timings,
                .kernel = outcome.kernel,
                .tflops = outcome.tflops,
                .batched_with = outcome.batched_with};
    if (outcome.status.ok()) ended.d = DenseBytes(AsConst(d));
    outcome.memory.Reset();  // before anyone can see the job ended: the pool is checked then
    inbox.Put(tag, std::move(ended));
  };
  return job;
}

EngineFixture::EngineFixture(const TestDeviceOptions& device_options, EngineOptions options,
                             const Clock* clock)
    : device(std::make_shared<TestDeviceControl>(device_options)) {
  options.on_fatal = [this](const FatalError& error) {
    EXPECT_FALSE(error.status.ok());
    fatal_cause = error.cause;
    ++fatal_calls;
  };
  auto created = Engine::Create(options, CreateTestDevice(device), clock, &events);
  if (!created.ok()) {
    ADD_FAILURE() << created.status();
    std::abort();
  }
  engine = std::move(*created);
}

EngineFixture::~EngineFixture() {
  device->Release();
  engine.reset();
  EXPECT_EQ(device->violation(), "");
}

void EngineFixture::SubmitBlocker(int tag) {
  device->Hold();
  const int before = device->launches();
  ASSERT_TRUE(Submit(tag).ok());
  device->WaitForLaunches(before + 1);
}

void EngineFixture::WaitUntilIdle() const {
  while (engine->pending_jobs() > 0) std::this_thread::yield();
}

}  // namespace tcgemm
