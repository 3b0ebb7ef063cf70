// Epilogues through the engine: C and the bias come along or stay, and stacking changes no bits.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "server/engine/engine.h"
#include "tests/engine/engine_fixture.h"

namespace tcgemm {
namespace {

using Bytes = std::vector<std::byte>;

struct DeviceKind {
  const char* name;
  TestDeviceOptions options;
};

class EngineEpilogueTest : public testing::TestWithParam<DeviceKind> {
 protected:
  static EngineOptions Options() {
    EngineOptions options = EngineFixture::DefaultOptions();
    options.resident_bytes = 1 << 20;
    options.slots = 1;
    return options;
  }
  bool unified() const { return GetParam().options.unified_memory; }
};

INSTANTIATE_TEST_SUITE_P(Devices, EngineEpilogueTest,
                         testing::Values(DeviceKind{"cpu",
                                                    {.unified_memory = true, .synchronous = true}},
                                         DeviceKind{"gpu", {.pitch_alignment = 64}}),
                         [](const auto& info) { return std::string(info.param.name); });

std::vector<uint32_t> BitsOf(const Bytes& bytes, DType dtype) {
  std::vector<uint32_t> bits(bytes.size() / DTypeSize(dtype));
  for (size_t i = 0; i < bits.size(); ++i) {
    std::memcpy(&bits[i], bytes.data() + i * DTypeSize(dtype), DTypeSize(dtype));
  }
  return bits;
}

ResidentRef Keep(Engine& engine, const MatrixView& view) {
  const ResidentRef matrix =
      engine.residents()
          .Create({}, {.rows = view.rows, .cols = view.cols, .dtype = view.dtype})
          .value();
  const size_t row_bytes = static_cast<size_t>(view.cols) * DTypeSize(view.dtype);
  for (int64_t row = 0; row < view.rows; ++row) {
    const HostBytes bytes(static_cast<const std::byte*>(view.data) +
                              static_cast<size_t>(row * view.ld) * DTypeSize(view.dtype),
                          row_bytes);
    EXPECT_TRUE(
        engine.transfers().Write(matrix, static_cast<size_t>(row) * row_bytes, {&bytes, 1}).ok());
  }
  return matrix;
}

void UseResident(Engine& engine, MatrixView& operand, ResidentRef& slot) {
  slot = Keep(engine, operand);
  const bool transposed = operand.transposed;
  operand = slot->view();
  operand.transposed = transposed;
}

// Every kind, with C and the bias in the job's memory, resident, or one of each.
TEST_P(EngineEpilogueTest, EveryKindAndEveryMixOfPlaces) {
  EngineFixture f(GetParam().options, Options());
  int tag = 0;
  for (const EpilogueCase& epilogue_case : EpilogueCases()) {
    for (const DType output : {DType::kBf16, DType::kFp32}) {
      JobSpec spec{.shape = {.m = 9, .n = 7, .k = 11}, .output = DType::kFp32, .seed = 5};
      ASSERT_TRUE(f.Submit(++tag, spec).ok());
      const std::vector<uint32_t> sums = BitsOf(f.inbox.Wait(tag).d, DType::kFp32);
      spec.output = output;
      spec.epilogue = epilogue_case;
      const EpilogueData data = EpilogueDataOf(spec);
      const std::vector<uint32_t> expected =
          ForetellBits(sums, data.View(), {.m = 9, .n = 7}, output);
      for (int mix = 0; mix < 8; ++mix) {
        Job job = MakeJob(*f.engine, spec, f.inbox, ++tag);
        Epilogue& epilogue = job.problem.epilogue;
        if (mix & 1 && epilogue.reads_c()) UseResident(*f.engine, epilogue.c, job.residents.c);
        if (mix & 2 && epilogue.has_bias()) {
          UseResident(*f.engine, epilogue.bias, job.residents.bias);
        }
        if (mix & 4) UseResident(*f.engine, job.problem.b, job.residents.b);
        ASSERT_TRUE(f.engine->Submit(std::move(job)).ok());
        const Ended ended = f.inbox.Wait(tag);
        ASSERT_TRUE(ended.status.ok()) << ended.status;
        EXPECT_EQ(BitsOf(ended.d, output), expected) << epilogue_case.ToString() << " mix " << mix;
      }
    }
  }
}

TEST_P(EngineEpilogueTest, OnlyWhatIsReadIsMoved) {
  EngineFixture f(GetParam().options, Options());
  const JobSpec spec{
      .shape = {.m = 3, .n = 5, .k = 7},
      .epilogue = EpilogueCase{.beta = 1, .c_dtype = DType::kFp32, .bias = BiasAxis::kColumn}};
  ASSERT_TRUE(f.Submit(1, spec).ok());
  ASSERT_TRUE(f.inbox.Wait(1).status.ok());
  const int64_t product = (3 * 7 + 7 * 5) * 2;
  EXPECT_EQ(f.events.bytes_in, unified() ? 0 : product + 3 * 5 * 4 + 3 * 2);
  Job job = MakeJob(*f.engine, spec, f.inbox, 2);
  job.problem.epilogue.beta = 0;  // C is there, and nobody wants it
  const int64_t before = f.events.bytes_in;
  ASSERT_TRUE(f.engine->Submit(std::move(job)).ok());
  ASSERT_TRUE(f.inbox.Wait(2).status.ok());
  EXPECT_EQ(f.events.bytes_in - before, unified() ? 0 : product + 3 * 2);
}

// What each request of a crowd gets, with its own alpha or all with one.
TEST_P(EngineEpilogueTest, InACrowdTheBitsAreTheSame) {
  constexpr int kJobs = 60;
  const auto spec = [](int i) {
    EpilogueCase kinds[] = {{.alpha = 0.5f, .activation = Activation::kGelu},
                            {.beta = 2, .c_dtype = DType::kFp32},
                            {.beta = -1, .bias = BiasAxis::kColumn},
                            {.bias = BiasAxis::kRow},
                            {.alpha = 0.25f + static_cast<float>(i)}};
    return JobSpec{.shape = {.m = 1 + i % 4, .n = 7, .k = 11},
                   .seed = 3 + static_cast<uint64_t>(i),
                   .epilogue = kinds[i % 5]};
  };
  EngineFixture f(GetParam().options, Options());
  const JobSpec shared_spec{.shape = {.m = 1, .n = 7, .k = 11}, .seed = 1000};
  Job maker = MakeJob(*f.engine, shared_spec, f.inbox, 9999);
  const ResidentRef shared = Keep(*f.engine, maker.problem.b);
  maker = {};
  const auto make = [&](int i, int tag) {
    Job job = MakeJob(*f.engine, spec(i), f.inbox, tag);
    job.problem.b = shared->view();
    job.residents.b = shared;
    return job;
  };
  Bytes alone[kJobs];
  for (int i = 0; i < kJobs; ++i) {
    ASSERT_TRUE(f.engine->Submit(make(i, 1000 + i)).ok());
    alone[i] = f.inbox.Wait(1000 + i).d;
  }
  f.SubmitBlocker(999);
  for (int i = 0; i < kJobs; ++i) ASSERT_TRUE(f.engine->Submit(make(i, i)).ok());
  f.device->Release();
  for (int i = 0; i < kJobs; ++i) {
    const Ended ended = f.inbox.Wait(i);
    ASSERT_TRUE(ended.status.ok()) << ended.status;
    EXPECT_EQ(ended.d, alone[i]) << i;
    EXPECT_EQ(ended.batched_with, kJobs - 1) << "one launch, whatever the epilogues";
  }
  // Three kinds are a stack each; a row of one's own and an alpha of one's own stack with nobody.
  EXPECT_EQ(f.device->batch_sizes().back(), unified() ? kJobs : 3 + 12 + 12);
  EXPECT_EQ(f.events.coalesced, unified() ? 0 : 36);
}

TEST_P(EngineEpilogueTest, RefusesAnEpilogueThatIsNone) {
  EngineFixture f(GetParam().options, Options());
  Job job = MakeJob(*f.engine, {.epilogue = EpilogueCase{.beta = 1}}, f.inbox, 1);
  job.problem.epilogue.c.rows = 3;
  const absl::Status status = f.engine->Submit(std::move(job)).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_EQ(std::string(status.message()), "c is 3x5, D is 4x5; they must be equal, as beta is 1");
}

}  // namespace
}  // namespace tcgemm
