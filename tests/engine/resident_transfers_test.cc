#include "server/engine/resident_transfers.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "tests/engine/engine_fixture.h"

namespace tcgemm {
namespace {

using absl::StatusCode;
using Operation = TestDeviceControl::Operation;

EngineOptions WithResidents() {
  EngineOptions options = EngineFixture::DefaultOptions();
  options.resident_bytes = 8 << 20;
  return options;
}

std::vector<std::byte> Numbers(size_t count) {
  std::vector<std::byte> bytes(count);
  for (size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>(i * 7 + i / 251);
  return bytes;
}

TEST(PlanRangeCopiesTest, CutsAtRows) {
  std::byte matrix[64];
  std::byte host[64];
  const MatrixView view{.data = matrix, .rows = 4, .cols = 3, .ld = 8};  // 6 of 16 bytes
  const std::vector<Copy2d> copies = PlanRangeCopies(view, {4, 21}, host, true);
  ASSERT_EQ(copies.size(), 3u);
  EXPECT_EQ(copies[0].destination, matrix + 4);
  EXPECT_EQ(copies[0].row_bytes, 2u);
  EXPECT_EQ(copies[1].destination, matrix + 16);
  EXPECT_EQ(copies[1].source, host + 2);
  EXPECT_EQ(copies[1].rows, 2);
  EXPECT_EQ(copies[1].row_bytes, 6u);
  EXPECT_EQ(copies[1].destination_pitch, 16u);
  EXPECT_EQ(copies[1].source_pitch, 6u);
  EXPECT_EQ(copies[2].destination, matrix + 48);
  EXPECT_EQ(copies[2].source, host + 14);
  EXPECT_EQ(copies[2].row_bytes, 3u);
  EXPECT_EQ(PlanRangeCopies(view, {7, 9}, host, false)[0].destination, host);
  EXPECT_TRUE(PlanRangeCopies(view, {7, 7}, host, true).empty());
}

class TransfersTest : public testing::TestWithParam<bool> {
 protected:
  TransfersTest()
      : f({.unified_memory = GetParam(), .synchronous = GetParam(), .pitch_alignment = 64},
          WithResidents()) {}

  ResidentRef Create(int64_t rows, int64_t cols) {
    return f.engine->residents().Create({}, {.rows = rows, .cols = cols}).value();
  }
  absl::Status Write(const ResidentRef& matrix, size_t offset, HostBytes bytes) {
    return f.engine->transfers().Write(matrix, offset, {&bytes, 1});
  }
  std::vector<std::byte> ReadAll(const ResidentRef& matrix) {
    std::vector<std::byte> bytes(matrix->dense_bytes());
    EXPECT_TRUE(f.engine->transfers().Read(matrix, {0, bytes.size()}, bytes.data()).ok());
    return bytes;
  }

  EngineFixture f;
};

INSTANTIATE_TEST_SUITE_P(Memory, TransfersTest, testing::Bool(), [](const auto& info) {
  return std::string(info.param ? "unified" : "gpu");
});

TEST_P(TransfersTest, WhatComesBackIsWhatWasSent) {
  // More than a piece, in rows that no piece ends with.
  const ResidentRef matrix = Create(1001, 701);
  const std::vector<std::byte> sent = Numbers(matrix->dense_bytes());
  const HostBytes all(sent);
  const HostBytes pieces[] = {all.subspan(0, 13), {}, all.subspan(13, 1300000)};
  const size_t rest = 1300013;
  ASSERT_TRUE(Write(matrix, rest, all.subspan(rest)).ok());
  EXPECT_FALSE(matrix->complete());
  ASSERT_TRUE(f.engine->transfers().Write(matrix, 0, pieces).ok());
  EXPECT_TRUE(matrix->complete());
  EXPECT_EQ(ReadAll(matrix), sent);
  EXPECT_EQ(f.events.bytes_in, GetParam() ? 0 : static_cast<int64_t>(sent.size()));
  EXPECT_EQ(f.events.bytes_out, GetParam() ? 0 : static_cast<int64_t>(sent.size()));
}

TEST_P(TransfersTest, WhatIsThereStays) {
  const ResidentRef matrix = Create(4, 6);
  const std::vector<std::byte> sent = Numbers(48);
  ASSERT_TRUE(Write(matrix, 8, HostBytes(sent).subspan(8, 8)).ok());
  std::vector<std::byte> other(48, std::byte{0xee});
  std::memcpy(other.data(), sent.data(), 8);
  std::memcpy(other.data() + 16, sent.data() + 16, 32);
  ASSERT_TRUE(Write(matrix, 0, other).ok());
  EXPECT_EQ(ReadAll(matrix), sent);
}

TEST_P(TransfersTest, RefusesBytesOutside) {
  const ResidentRef matrix = Create(4, 6);
  const std::vector<std::byte> bytes(16);
  for (const size_t offset : {size_t{33}, size_t{48}, SIZE_MAX - 3}) {
    EXPECT_EQ(Write(matrix, offset, bytes).code(), StatusCode::kInvalidArgument);
  }
  std::byte to[64];
  EXPECT_EQ(f.engine->transfers().Read(matrix, {40, 49}, to).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(f.engine->transfers().Read(matrix, {9, 8}, to).code(), StatusCode::kInvalidArgument);
}

TEST_P(TransfersTest, ManyThreadsFillOneMatrix) {
  const ResidentRef matrix = Create(400, 333);
  const std::vector<std::byte> sent = Numbers(matrix->dense_bytes());
  std::vector<std::thread> threads;
  for (size_t t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      for (size_t at = t * 1000; at < sent.size(); at += 7000) {
        const size_t bytes = std::min<size_t>(3000, sent.size() - at);
        EXPECT_TRUE(Write(matrix, at, HostBytes(sent).subspan(at, bytes)).ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(matrix->complete());
  EXPECT_EQ(ReadAll(matrix), sent);
}

struct GpuTransfersTest : TransfersTest {};
INSTANTIATE_TEST_SUITE_P(Gpu, GpuTransfersTest, testing::Values(false));

TEST_P(GpuTransfersTest, AFailedCopyMayBeRepeated) {
  const ResidentRef matrix = Create(4, 6);
  const std::vector<std::byte> sent = Numbers(48);
  f.device->FailNext(Operation::kCopyIn);
  EXPECT_EQ(Write(matrix, 0, sent).code(), StatusCode::kInternal);
  EXPECT_TRUE(matrix->present().empty());
  EXPECT_EQ(f.events.error_count(DeviceErrorKind::kCopy), 1);
  f.device->FailNext(Operation::kWait);
  EXPECT_EQ(Write(matrix, 0, sent).code(), StatusCode::kInternal);
  ASSERT_TRUE(Write(matrix, 0, sent).ok());
  EXPECT_EQ(ReadAll(matrix), sent);
  EXPECT_FALSE(f.engine->transfers().hung());
}

TEST_P(GpuTransfersTest, ACopyThatHangsKeepsItsMemory) {
  ResidentRef matrix = Create(4, 6);
  const std::vector<std::byte> sent = Numbers(48);
  f.device->Hang();
  f.device->Expire();
  for (int lane = 0; lane < 4; ++lane) {
    EXPECT_EQ(Write(matrix, 0, sent).code(), StatusCode::kInternal);
  }
  EXPECT_TRUE(f.engine->transfers().hung());
  EXPECT_EQ(f.device->waited(), 4 * ResidentTransfers::kCopyLimit);
  EXPECT_EQ(Write(matrix, 0, sent).code(), StatusCode::kInternal) << "no lane is left to wait for";
  ASSERT_TRUE(f.engine->residents().Delete({}, matrix->identity().handle).ok());
  matrix.reset();
  EXPECT_GT(f.engine->residents().pool().used_bytes(), 0u);
}

}  // namespace
}  // namespace tcgemm
