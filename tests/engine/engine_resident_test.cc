// Products of resident matrices through the engine: alone, stacked, and when things go wrong.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "matrix/matrix.h"
#include "server/engine/engine.h"
#include "tests/engine/engine_fixture.h"

namespace tcgemm {
namespace {

using absl::StatusCode;
using Bytes = std::vector<std::byte>;

EngineOptions WithResidents(int max_batch = 64) {
  EngineOptions options = EngineFixture::DefaultOptions();
  options.max_batch = max_batch;
  options.resident_bytes = 1 << 20;
  options.slots = 1;
  return options;
}

// Puts an operand of `job`, which lies in its memory, into the store.
ResidentRef Keep(Engine& engine, const MatrixView& view, const std::string& name = "") {
  const ResidentRef matrix =
      engine.residents()
          .Create({}, {.name = name, .rows = view.rows, .cols = view.cols, .dtype = view.dtype})
          .value();
  const size_t row_bytes = static_cast<size_t>(view.cols) * DTypeSize(view.dtype);
  for (int64_t row = 0; row < view.rows; ++row) {
    const auto* const from = static_cast<const std::byte*>(view.data) +
                             static_cast<size_t>(row * view.ld) * DTypeSize(view.dtype);
    const HostBytes bytes(from, row_bytes);
    EXPECT_TRUE(
        engine.transfers().Write(matrix, static_cast<size_t>(row) * row_bytes, {&bytes, 1}).ok());
  }
  EXPECT_TRUE(matrix->complete());
  return matrix;
}

void UseResident(MatrixView& operand, ResidentRef& slot, const ResidentRef& matrix) {
  const bool transposed = operand.transposed;
  operand = matrix->view();
  operand.transposed = transposed;
  slot = matrix;
}

Bytes Read(Engine& engine, const ResidentRef& matrix) {
  Bytes bytes(matrix->dense_bytes());
  EXPECT_TRUE(engine.transfers().Read(matrix, {0, bytes.size()}, bytes.data()).ok());
  return bytes;
}

struct DeviceKind {
  const char* name;
  TestDeviceOptions options;
};

class ResidentJobTest : public testing::TestWithParam<DeviceKind> {};

INSTANTIATE_TEST_SUITE_P(Devices, ResidentJobTest,
                         testing::Values(DeviceKind{"cpu",
                                                    {.unified_memory = true, .synchronous = true}},
                                         DeviceKind{"gpu", {.pitch_alignment = 64}}),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(ResidentJobTest, EveryMixGivesTheSameBits) {
  EngineFixture f(GetParam().options, WithResidents());
  for (int layout = 0; layout < 4; ++layout) {
    const JobSpec spec{.shape = {.m = 9, .n = 7, .k = 11},
                       .transpose_a = (layout & 1) != 0,
                       .transpose_b = (layout & 2) != 0,
                       .seed = 5};
    ASSERT_TRUE(f.Submit(layout * 100, spec).ok());
    const Bytes alone = f.inbox.Wait(layout * 100).d;
    for (int mix = 1; mix < 8; ++mix) {
      const int tag = layout * 100 + mix;
      Job job = MakeJob(*f.engine, spec, f.inbox, tag);
      if (mix & 1) UseResident(job.problem.a, job.residents.a, Keep(*f.engine, job.problem.a));
      if (mix & 2) UseResident(job.problem.b, job.residents.b, Keep(*f.engine, job.problem.b));
      ResidentRef d;
      if (mix & 4) {
        d = f.engine->residents().Create({}, {.rows = 9, .cols = 7, .product = true}).value();
        job.problem.d = {
            .data = const_cast<void*>(d->view().data), .rows = 9, .cols = 7, .ld = d->view().ld};
        job.residents.d = d;
        job.done = [&f, tag](JobOutcome outcome) { f.inbox.Put(tag, {.status = outcome.status}); };
      }
      ASSERT_TRUE(f.engine->Submit(std::move(job)).ok());
      const Ended ended = f.inbox.Wait(tag);
      ASSERT_TRUE(ended.status.ok()) << ended.status;
      if (d != nullptr) d->SetComplete();
      EXPECT_EQ(d != nullptr ? Read(*f.engine, d) : ended.d, alone) << "mix " << mix;
    }
  }
}

TEST_P(ResidentJobTest, ResidentMatricesMoveNoBytes) {
  EngineFixture f(GetParam().options, WithResidents());
  Job job = MakeJob(*f.engine, {.shape = {.m = 3, .n = 5, .k = 7}}, f.inbox, 1);
  UseResident(job.problem.b, job.residents.b, Keep(*f.engine, job.problem.b));
  const int64_t in = f.events.bytes_in;
  const int64_t out = f.events.bytes_out;
  ASSERT_TRUE(f.engine->Submit(std::move(job)).ok());
  ASSERT_TRUE(f.inbox.Wait(1).status.ok());
  const bool unified = GetParam().options.unified_memory;
  EXPECT_EQ(f.events.bytes_in - in, unified ? 0 : 3 * 7 * 2);
  EXPECT_EQ(f.events.bytes_out - out, unified ? 0 : 3 * 5 * 2);
}

TEST_P(ResidentJobTest, ADeletedMatrixLivesUntilItsProductIsDone) {
  EngineFixture f(GetParam().options, WithResidents());
  Job job = MakeJob(*f.engine, {}, f.inbox, 1);
  UseResident(job.problem.b, job.residents.b, Keep(*f.engine, job.problem.b, "w"));
  f.device->Hold();
  ASSERT_TRUE(f.engine->Submit(std::move(job)).ok());
  f.device->WaitForLaunches(1);
  ASSERT_TRUE(f.engine->residents().Delete({}, "w").ok());
  EXPECT_GT(f.engine->residents().pool().used_bytes(), 0u);
  f.device->Release();
  EXPECT_TRUE(f.inbox.Wait(1).status.ok());
  f.WaitUntilIdle();
  EXPECT_EQ(f.engine->residents().pool().used_bytes(), 0u);
}

TEST_P(ResidentJobTest, StackedWith63OthersTheBitsAreTheSame) {
  EngineFixture f(GetParam().options, WithResidents());
  constexpr int kJobs = 64;
  const auto spec = [](int i) {
    return JobSpec{.shape = {.m = 1 + i % 5, .n = 7, .k = 11},
                   .seed = 3 + static_cast<uint64_t>(i % 3)};
  };
  ResidentRef shared[3];
  Bytes alone[kJobs];
  for (int i = 0; i < kJobs; ++i) {
    Job job = MakeJob(*f.engine, spec(i), f.inbox, 1000 + i);
    if (shared[i % 3] == nullptr) shared[i % 3] = Keep(*f.engine, job.problem.b);
    ASSERT_TRUE(f.engine->Submit(std::move(job)).ok());
    alone[i] = f.inbox.Wait(1000 + i).d;
  }
  f.SubmitBlocker(999);
  for (int i = 0; i < kJobs; ++i) {
    Job job = MakeJob(*f.engine, spec(i), f.inbox, i);
    UseResident(job.problem.b, job.residents.b, shared[i % 3]);
    ASSERT_TRUE(f.engine->Submit(std::move(job)).ok());
  }
  f.device->Release();
  for (int i = 0; i < kJobs; ++i) {
    const Ended ended = f.inbox.Wait(i);
    ASSERT_TRUE(ended.status.ok()) << ended.status;
    EXPECT_EQ(ended.d, alone[i]) << i;
    EXPECT_EQ(ended.batched_with, kJobs - 1);
  }
  // Three matrices, three products; on the CPU each request's rows stay where they are.
  const bool unified = GetParam().options.unified_memory;
  EXPECT_EQ(f.device->batch_sizes().back(), unified ? kJobs : 3);
  EXPECT_EQ(f.events.coalesced, unified ? 0 : kJobs);
}

TEST(StackedJobTest, ACancelledOneLeavesNoHoleThatAnybodyWaitsFor) {
  EngineFixture f({.pitch_alignment = 64}, WithResidents());
  f.SubmitBlocker(100);
  ResidentRef shared;
  JobId cancelled = 0;
  for (int i = 0; i < 3; ++i) {
    Job job = MakeJob(*f.engine, {}, f.inbox, i);
    if (shared == nullptr) shared = Keep(*f.engine, job.problem.b);
    UseResident(job.problem.b, job.residents.b, shared);
    const JobId id = f.engine->Submit(std::move(job)).value();
    if (i == 1) cancelled = id;
  }
  EXPECT_TRUE(f.engine->Cancel(cancelled, absl::CancelledError("gone")));
  f.device->Release();
  EXPECT_TRUE(f.inbox.Wait(0).status.ok());
  EXPECT_EQ(f.inbox.Wait(1).status.code(), StatusCode::kCancelled);
  EXPECT_EQ(f.inbox.Wait(2).d, f.inbox.Wait(0).d);
  EXPECT_EQ(f.events.coalesced, 2);
}

TEST(StackedJobTest, ANanIsTheNanOfOneRequest) {
  EngineFixture f({.pitch_alignment = 64}, WithResidents());
  f.SubmitBlocker(100);
  Job first = MakeJob(*f.engine, {}, f.inbox, 99);
  const ResidentRef shared = Keep(*f.engine, first.problem.b);
  uint32_t flags[3] = {};
  for (int i = 0; i < 3; ++i) {
    Job job = MakeJob(*f.engine, {.nan_filled = i == 1}, f.inbox, i);
    job.problem.nonfinite = &flags[i];
    UseResident(job.problem.b, job.residents.b, shared);
    ASSERT_TRUE(f.engine->Submit(std::move(job)).ok());
  }
  first = {};
  f.device->Release();
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(f.inbox.Wait(i).status.ok());
  EXPECT_EQ(flags[0], 0u);
  EXPECT_EQ(flags[1], 1u);
  EXPECT_EQ(flags[2], 0u);
  EXPECT_EQ(f.events.nonfinite, 1);
}

TEST(ResidentHangTest, AHungProductKeepsItsMatrices) {
  EngineFixture f({.pitch_alignment = 64}, WithResidents());
  Job job = MakeJob(*f.engine, {}, f.inbox, 1);
  UseResident(job.problem.b, job.residents.b, Keep(*f.engine, job.problem.b, "w"));
  f.device->Hang();
  ASSERT_TRUE(f.engine->Submit(std::move(job)).ok());
  f.device->WaitForLaunches(1);
  f.device->Expire();
  EXPECT_EQ(f.inbox.Wait(1).status.code(), StatusCode::kInternal);
  f.WaitUntilIdle();
  ASSERT_TRUE(f.engine->residents().Delete({}, "w").ok());
  EXPECT_GT(f.engine->residents().pool().used_bytes(), 0u);
}

}  // namespace
}  // namespace tcgemm
