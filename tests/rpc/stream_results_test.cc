#include "server/rpc/stream_results.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "base/crc32c.h"
#include "tcgemm/v1/matmul.pb.h"

namespace tcgemm {
namespace {

MemoryBlock Memory(size_t bytes) {
  return {std::aligned_alloc(BufferPool::kAlignment, bytes), bytes, std::free};
}

// D is 5 rows of 1000 fp32, two rows a panel.
struct Fixture {
  Fixture() {
    plan.layout.a = {.rows = 5, .cols = 7, .ld = 7};
    plan.layout.d = {.rows = 5, .cols = 1000, .ld = 1000, .dtype = DType::kFp32};
    plan.panel_rows = 2;
    plan.panels = 3;
  }
  // The panel's bytes are its number, 'a', 'b', 'c'.
  StreamResults::Result Result(int64_t index) {
    const PanelLayout layout = LayoutOfPanel(plan, index);
    JobOutcome outcome;
    outcome.memory = pool.TryLease(layout.lease_bytes).value();
    std::memset(outcome.memory.data(), static_cast<int>('a' + index), layout.lease_bytes);
    outcome.timings.queue = Nanos(10);
    outcome.tflops = 1;
    outcome.kernel = "k";
    outcome.batched_with = static_cast<int>(index);
    return {layout, std::move(outcome), [this] { ++gone; }};
  }
  StreamPlan plan;
  BufferPool pool{"test", Memory(1 << 20)};
  int gone = 0;
};

v1::Panel PanelOf(const grpc::ByteBuffer& message) {
  std::vector<grpc::Slice> slices;
  EXPECT_TRUE(message.Dump(&slices).ok());
  std::string bytes;
  for (const grpc::Slice& slice : slices) {
    bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  v1::MatmulStreamResponse response;
  EXPECT_TRUE(response.ParseFromString(bytes));
  return response.d();
}

TEST(StreamResultsTest, PanelsLeaveInOrderWhateverTheirOrderOfArrival) {
  Fixture fixture;
  StreamResults results(fixture.plan);
  EXPECT_TRUE(results.Add(2, fixture.Result(2)).empty());
  EXPECT_TRUE(results.Add(1, fixture.Result(1)).empty());
  EXPECT_FALSE(results.complete());
  const std::vector<grpc::ByteBuffer> messages = results.Add(0, fixture.Result(0));
  EXPECT_TRUE(results.complete());
  ASSERT_EQ(messages.size(), 3u);
  int64_t offset = 0;
  for (int i = 0; i < 3; ++i) {
    const v1::Panel panel = PanelOf(messages[i]);
    const size_t bytes = i < 2 ? 8000 : 4000;
    EXPECT_EQ(panel.offset(), offset);
    EXPECT_EQ(panel.data(), std::string(bytes, static_cast<char>('a' + i)));
    EXPECT_EQ(panel.crc32c(), Crc32c(panel.data().data(), bytes));
    offset += static_cast<int64_t>(bytes);
  }
}

TEST(StreamResultsTest, ALeaseGoesWithItsLastByte) {
  Fixture fixture;
  StreamResults results(fixture.plan);
  std::vector<grpc::ByteBuffer> first = results.Add(0, fixture.Result(0));
  std::vector<grpc::ByteBuffer> second = results.Add(1, fixture.Result(1));
  EXPECT_EQ(fixture.pool.lease_count(), 2);
  grpc::ByteBuffer at_grpc = first[0];
  first.clear();
  EXPECT_EQ(fixture.gone, 0);
  at_grpc.Clear();
  EXPECT_EQ(fixture.gone, 1);
  EXPECT_EQ(fixture.pool.lease_count(), 1);
  second.clear();
  EXPECT_EQ(fixture.gone, 2);
  EXPECT_EQ(fixture.pool.lease_count(), 0);
}

TEST(StreamResultsTest, APanelOfManyMiBIsSeveralMessages) {
  Fixture fixture;
  fixture.plan.layout.d = {.rows = 3, .cols = 500'000, .ld = 500'000, .dtype = DType::kFp32};
  fixture.plan.panel_rows = 3;
  fixture.plan.panels = 1;
  BufferPool pool("test", Memory(8 << 20));
  JobOutcome outcome;
  outcome.memory = pool.TryLease(6'000'000).value();
  for (size_t i = 0; i < 6'000'000; ++i) outcome.memory.data()[i] = std::byte(i * 7 + i / 1000);
  const std::string expected(reinterpret_cast<const char*>(outcome.memory.data()), 6'000'000);
  StreamResults results(fixture.plan);
  int gone = 0;
  std::vector<grpc::ByteBuffer> messages =
      results.Add(0, {LayoutOfPanel(fixture.plan, 0), std::move(outcome), [&gone] { ++gone; }});
  ASSERT_EQ(messages.size(), 3u);
  std::string all;
  for (const grpc::ByteBuffer& message : messages) {
    EXPECT_LT(message.Length(), size_t{4} << 20) << "stock clients refuse more";
    const v1::Panel panel = PanelOf(message);
    EXPECT_EQ(panel.offset(), static_cast<int64_t>(all.size()));
    all += panel.data();
  }
  EXPECT_EQ(all, expected);
  messages.pop_back();
  EXPECT_EQ(gone, 0);
  messages.clear();
  EXPECT_EQ(gone, 1);
}

TEST(StreamResultsTest, AResidentResultSendsNothing) {
  Fixture fixture;
  fixture.plan.layout.d_is_resident = true;
  StreamResults results(fixture.plan);
  for (int64_t i = 0; i < 3; ++i) {
    EXPECT_TRUE(
        results.Add(i, {LayoutOfPanel(fixture.plan, i), {}, [&] { ++fixture.gone; }}).empty());
    EXPECT_EQ(fixture.gone, i + 1);
  }
  EXPECT_TRUE(results.complete());
}

TEST(StreamResultsTest, TimingsAddUp) {
  Fixture fixture;
  StreamResults results(fixture.plan);
  for (int64_t i = 0; i < 3; ++i) results.Add(i, fixture.Result(i));
  EXPECT_EQ(results.timings().job.queue, Nanos(30));
  EXPECT_EQ(results.timings().kernel, "k");
  EXPECT_EQ(results.timings().batched_with, 2);
  // 2·5·1000·7 FLOPs at 1 TFLOPS: whatever else was in the launches.
  EXPECT_NEAR(static_cast<double>(results.timings().job.kernel.count()), 70.0, 3.0);
}

}  // namespace
}  // namespace tcgemm
