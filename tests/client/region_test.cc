// Shared memory from the client's side, against the server itself.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "client/region_client.h"
#include "client/shared_memory_client.h"
#include "client/shared_region.h"
#include "client/side_socket.h"
#include "matrix/matrix.h"
#include "matrix/reference.h"
#include "tests/rpc/region_client.h"
#include "tests/rpc/rpc_fixture.h"

namespace tcgemm::client {
namespace {

using testing::HasSubstr;

constexpr CallOptions kOptions{.timeout = std::chrono::seconds(20)};
constexpr size_t kMiB = size_t{1} << 20;

class RegionTest : public testing::Test {
 protected:
  RegionTest() {
    RpcOptions options;
    options.listen = {address(), "127.0.0.1:0"};
    fixture_ = std::make_unique<RpcFixture>(options, FakeDeviceOptions{},
                                            std::make_unique<CountingEvents>(),
                                            SharedRegionLimits{.total_bytes = 4 * kMiB});
    client_ = RegionClient::Create({.server = address()}).value();
  }
  std::string address() const { return "unix:" + folder_.path("s"); }
  std::unique_ptr<SharedRegion> Open(size_t bytes = kMiB) {
    auto region = client_->Open(bytes, kOptions);
    EXPECT_TRUE(region.ok()) << region.status();
    return *std::move(region);
  }
  // A matrix in the region with elements of N(0, 1), rows `padding` apart.
  static MatrixView Normal(SharedRegion& region, int64_t rows, int64_t cols, uint64_t seed,
                           int64_t padding = 0) {
    Matrix made(rows, cols, cols + padding, DType::kBf16);
    FillNormal(made, seed);
    const absl::Span<std::byte> room = region.Allocate(made.bytes()).value();
    std::memcpy(room.data(), made.data<std::byte>(), made.bytes());
    MatrixView view = made.view();
    view.data = room.data();
    return view;
  }

  SocketFolder folder_;
  std::unique_ptr<RpcFixture> fixture_;
  std::unique_ptr<RegionClient> client_;
};

TEST_F(RegionTest, ProductsAreRightWhereverTheirMatricesLie) {
  const auto region = Open();
  const MatrixView a = Normal(*region, 33, 65, 1, 7);
  const MatrixView b = Normal(*region, 65, 17, 2);
  const Reference reference = ComputeReference(a, b).value();
  Matrix elsewhere(65, 17, DType::kBf16);
  std::memcpy(elsewhere.data<std::byte>(), b.data, elsewhere.bytes());
  const auto store = MatrixClient::Create({.server = address()}).value();
  const std::string handle = store->Upload(b, {}, kOptions).value();
  for (const DType output : {DType::kBf16, DType::kFp32}) {
    const MutableMatrixView d = region->AllocateMatrix(33, 17, output).value();
    for (const Factor& factor :
         {Factor{.view = b}, Factor{.view = elsewhere.view()}, Factor{.handle = handle}}) {
      std::memset(d.data, 0xff, d.span_bytes());
      const auto info = client_->Multiply(*region, {.view = a}, factor, d, kOptions);
      ASSERT_TRUE(info.ok()) << info.status();
      EXPECT_EQ(info->attempts, 1);
      const Comparison comparison = CompareWithReference(AsConst(d), reference).value();
      EXPECT_TRUE(comparison.ok) << comparison.ToString();
    }
    region->Free(d.data);
  }
}

TEST_F(RegionTest, TransposedToo) {
  const auto region = Open();
  MatrixView a = Normal(*region, 20, 30, 1);
  MatrixView b = Normal(*region, 10, 20, 2, 3);
  a.transposed = b.transposed = true;
  const MutableMatrixView d = region->AllocateMatrix(30, 10, DType::kFp32).value();
  ASSERT_TRUE(client_->Multiply(*region, {.view = a}, {.view = b}, d, kOptions).ok());
  EXPECT_TRUE(CompareWithReference(AsConst(d), ComputeReference(a, b).value())->ok);
}

TEST_F(RegionTest, WhatIsWrongIsSaidBeforeAnythingIsSent) {
  const auto region = Open();
  const MatrixView a = Normal(*region, 4, 4, 1);
  const MutableMatrixView d = region->AllocateMatrix(4, 4, DType::kBf16).value();
  const auto refused = [&](const MatrixView& left, const MutableMatrixView& result,
                           const CallOptions& options = kOptions) {
    const auto info = client_->Multiply(*region, {.view = left}, {.view = a}, result, options);
    EXPECT_TRUE(absl::IsInvalidArgument(info.status())) << info.status();
  };
  refused(a, d, {});
  Matrix outside(4, 4, DType::kBf16);
  refused(a, outside.mutable_view());
  MutableMatrixView wrong = d;
  wrong.rows = 3;
  refused(a, wrong);
  wrong = d;
  wrong.ld = 5;
  refused(a, wrong);
  MatrixView beyond = a;
  beyond.data = region->data() + region->bytes() - 8;
  refused(beyond, d);
  MatrixView empty = a;
  empty.rows = 0;
  refused(empty, d);
  EXPECT_EQ(fixture_->events->launches(), 0);
}

TEST_F(RegionTest, AHandleOfAnotherShapeIsNoticed) {
  const auto region = Open();
  const auto store = MatrixClient::Create({.server = address()}).value();
  const Matrix square(6, 6, DType::kBf16);
  const std::string handle = store->Upload(square.view(), {}, kOptions).value();
  const MutableMatrixView d = region->AllocateMatrix(5, 6, DType::kBf16).value();
  const auto info = client_->Multiply(*region, {.handle = handle}, {.handle = handle}, d, kOptions);
  EXPECT_TRUE(absl::IsDataLoss(info.status())) << info.status();
}

TEST_F(RegionTest, AllocatesWithinItsBytes) {
  const auto region = Open(100'000);
  EXPECT_EQ(region->bytes() % 4096, 0u);
  std::mt19937 rng(3);
  std::map<std::byte*, size_t> pieces;
  for (int round = 0; round < 2000; ++round) {
    if (rng() % 3 == 0 && !pieces.empty()) {
      const auto it = std::next(pieces.begin(), static_cast<long>(rng() % pieces.size()));
      region->Free(it->first);
      pieces.erase(it);
      continue;
    }
    const size_t bytes = 1 + rng() % 9000;
    const auto piece = region->Allocate(bytes);
    if (!piece.ok()) {
      EXPECT_TRUE(absl::IsResourceExhausted(piece.status()));
      continue;
    }
    ASSERT_EQ(piece->size(), bytes);
    ASSERT_EQ(region->OffsetOf(piece->data()) % SharedRegion::kAlignment, 0u);
    ASSERT_TRUE(region->Contains(piece->data(), bytes));
    const auto next = pieces.lower_bound(piece->data());
    ASSERT_TRUE(next == pieces.end() || piece->data() + bytes <= next->first);
    ASSERT_TRUE(next == pieces.begin() ||
                std::prev(next)->first + std::prev(next)->second <= piece->data());
    pieces[piece->data()] = bytes;
  }
  for (const auto& [data, bytes] : pieces) region->Free(data);
  EXPECT_EQ(region->free_bytes(), region->bytes());
  EXPECT_TRUE(region->Allocate(region->bytes()).ok()) << "free pieces that touch are one";
  region->Free(nullptr);
  for (const size_t bytes : {size_t{0}, SIZE_MAX}) EXPECT_FALSE(region->Allocate(bytes).ok());
  EXPECT_FALSE(region->AllocateMatrix(int64_t{1} << 40, int64_t{1} << 40, DType::kBf16).ok());
  EXPECT_FALSE(region->Contains(region->data() - 1, 1));
  EXPECT_FALSE(region->Contains(region->data(), region->bytes() + 1));
  EXPECT_FALSE(region->Contains(region->data() + 1, SIZE_MAX));
}

TEST_F(RegionTest, TheServerHasItAsLongAsTheClient) {
  const SharedRegionStore& store = fixture_->engine->regions();
  auto region = Open();
  EXPECT_EQ(store.used_bytes(), kMiB);
  client_.reset();
  EXPECT_TRUE(region->status().ok()) << "it outlives its client";
  region.reset();
  while (store.used_bytes() != 0) std::this_thread::yield();
}

TEST_F(RegionTest, AServerThatEndsIsNoticed) {
  const auto region = Open();
  const MatrixView a = Normal(*region, 4, 4, 1);
  const MutableMatrixView d = region->AllocateMatrix(4, 4, DType::kBf16).value();
  fixture_->server->EndHeldCalls();
  while (region->status().ok()) std::this_thread::yield();
  EXPECT_TRUE(absl::IsUnavailable(region->status())) << region->status();
  const auto info = client_->Multiply(*region, {.view = a}, {.view = a}, d, kOptions);
  EXPECT_TRUE(absl::IsUnavailable(info.status()));
  EXPECT_THAT(std::string(info.status().message()), HasSubstr("no longer holds"));
  std::memset(region->data(), 1, region->bytes());  // it stays mapped
}

TEST_F(RegionTest, RefusalsAreTheServers) {
  EXPECT_TRUE(absl::IsResourceExhausted(client_->Open(5 * kMiB, kOptions).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(client_->Open(0, kOptions).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(client_->Open(1, {}).status()));
  const auto tcp = RegionClient::Create({.server = fixture_->server->addresses()[1]});
  EXPECT_TRUE(absl::IsInvalidArgument(tcp.status()));
  EXPECT_THAT(std::string(tcp.status().message()), HasSubstr("unix:/path"));
  const auto nobody = RegionClient::Create({.server = "unix:" + folder_.path("none")}).value();
  const auto unreachable = nobody->Open(1, {.timeout = std::chrono::seconds(5)});
  EXPECT_TRUE(absl::IsUnavailable(unreachable.status()) ||
              absl::IsDeadlineExceeded(unreachable.status()))
      << unreachable.status();
}

TEST_F(RegionTest, ASideSocketThatIsNotThereIsExplained) {
  const std::string side = folder_.path("s.regions");
  ASSERT_EQ(rename(side.c_str(), folder_.path("elsewhere").c_str()), 0);
  const auto region = client_->Open(1, kOptions);
  EXPECT_TRUE(absl::IsFailedPrecondition(region.status())) << region.status();
  EXPECT_THAT(std::string(region.status().message()), HasSubstr("container"));
  ASSERT_EQ(rename(folder_.path("elsewhere").c_str(), side.c_str()), 0);
  EXPECT_TRUE(client_->Open(1, kOptions).ok());
}

TEST_F(RegionTest, AClientThatCopiesMakesRoomAsItNeeds) {
  const auto client = CreateSharedMemoryClient({.server = address()}).value();
  EXPECT_TRUE(client->GetServerInfo(kOptions)->ready);
  EXPECT_EQ(*client->CheckHealth("", kOptions), Health::kServing);
  for (const int64_t side : {5, 300, 900, 7}) {
    Matrix a(side, 31, 40, DType::kBf16);
    Matrix b(side, 31, DType::kBf16);
    FillNormal(a, 1);
    FillNormal(b, 2);
    Matrix d;
    const auto info = client->Matmul(a.view(), b.transposed_view(), DType::kBf16, d, kOptions);
    ASSERT_TRUE(info.ok()) << info.status();
    const Reference reference = ComputeReference(a.view(), b.transposed_view()).value();
    EXPECT_TRUE(CompareWithReference(d.view(), reference)->ok);
  }
  EXPECT_GT(fixture_->engine->regions().used_bytes(), kMiB);
  Matrix tall(1500, 1, DType::kBf16);
  Matrix d;
  EXPECT_TRUE(absl::IsResourceExhausted(
      client->Matmul(tall.view(), tall.transposed_view(), DType::kFp32, d, kOptions).status()));
}

TEST_F(RegionTest, AnEpilogueTravelsWithTheCall) {
  const auto client = CreateSharedMemoryClient({.server = address()}).value();
  Matrix a(20, 31, DType::kBf16);
  Matrix b(31, 40, DType::kBf16);
  Matrix c(20, 40, 45, DType::kFp32);
  Matrix bias(20, 1, DType::kBf16);
  FillNormal(a, 1);
  FillNormal(b, 2);
  FillNormal(c, 3);
  FillNormal(bias, 4);
  const Epilogue epilogue = {.alpha = 0.5f,
                             .beta = -2,
                             .c = c.view(),
                             .bias = bias.view(),
                             .activation = Activation::kGelu};
  const auto inline_client = Client::Create({.server = address()}).value();
  Matrix expected;
  ASSERT_TRUE(
      inline_client->MatmulWith(epilogue, a.view(), b.view(), DType::kFp32, expected, kOptions)
          .ok());
  Matrix d;
  const auto info = client->MatmulWith(epilogue, a.view(), b.view(), DType::kFp32, d, kOptions);
  ASSERT_TRUE(info.ok()) << info.status();
  ASSERT_EQ(d.bytes(), expected.bytes());
  EXPECT_EQ(std::memcmp(d.data<std::byte>(), expected.data<std::byte>(), d.bytes()), 0);
  Epilogue wrong = epilogue;
  wrong.c.rows = 19;
  EXPECT_TRUE(absl::IsInvalidArgument(
      client->MatmulWith(wrong, a.view(), b.view(), DType::kFp32, d, kOptions).status()));
}

// ---- The side socket, with a server that lies ----

TEST(SideSocketTest, OnlySealedMemoryOfTheRightSizeIsMapped) {
  const auto memory = [](int seals) {
    const int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    EXPECT_EQ(ftruncate(fd, 8192), 0);
    EXPECT_EQ(fcntl(fd, F_ADD_SEALS, seals), 0);
    return fd;
  };
  constexpr int kAll = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  for (const int seals : {0, F_SEAL_SHRINK, F_SEAL_SHRINK | F_SEAL_GROW, F_SEAL_GROW}) {
    EXPECT_TRUE(absl::IsInternal(MapRegionFd(memory(seals), 8192).status()));
  }
  EXPECT_TRUE(absl::IsInternal(MapRegionFd(memory(kAll), 4096).status()));
  EXPECT_TRUE(absl::IsInternal(MapRegionFd(memory(kAll), 12288).status()));
  int pipe_fds[2];
  ASSERT_EQ(pipe(pipe_fds), 0);
  EXPECT_TRUE(absl::IsInternal(MapRegionFd(pipe_fds[0], 4096).status()));
  close(pipe_fds[1]);
  const auto mapped = MapRegionFd(memory(kAll), 8192);
  ASSERT_TRUE(mapped.ok()) << mapped.status();
  munmap(*mapped, 8192);
}

class LyingSideSocketTest : public testing::Test {
 protected:
  // A server that accepts one connection, says `words` if there are any, and closes or stays.
  absl::Status AskOneThatSays(const std::string& words, bool stays) {
    const int listening = socket(AF_UNIX, SOCK_STREAM, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, folder_.path("l").c_str(), sizeof(address.sun_path) - 1);
    EXPECT_EQ(bind(listening, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(listen(listening, 1), 0);
    std::thread server([&] {
      const int fd = accept(listening, nullptr, nullptr);
      char token[16];
      EXPECT_EQ(recv(fd, token, sizeof(token), MSG_WAITALL), 16);
      if (!words.empty()) {
        EXPECT_GT(send(fd, words.data(), words.size(), MSG_NOSIGNAL), 0);
      }
      if (stays) {
        EXPECT_EQ(recv(fd, token, 1, 0), 0) << "until the client gives up";
      }
      close(fd);
    });
    const auto fd = FetchRegionFd({.path = folder_.path("l")}, std::string(16, 't'),
                                  std::chrono::milliseconds(100));
    server.join();
    close(listening);
    unlink(folder_.path("l").c_str());
    return fd.status();
  }

  SocketFolder folder_;
};

TEST_F(LyingSideSocketTest, EveryEndHasAStatus) {
  EXPECT_TRUE(absl::IsInternal(AskOneThatSays("", false)));
  EXPECT_TRUE(absl::IsInternal(AskOneThatSays("OK", false)) ||
              absl::IsPermissionDenied(AskOneThatSays("OK", false)))
      << "without a descriptor";
  EXPECT_TRUE(absl::IsDeadlineExceeded(AskOneThatSays("", true)));
  const absl::Status refused = AskOneThatSays("refused: you", false);
  EXPECT_TRUE(absl::IsPermissionDenied(refused));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("refused: you"));
  EXPECT_TRUE(absl::IsFailedPrecondition(
      FetchRegionFd({.path = std::string(300, 'x')}, "", std::chrono::seconds(1)).status()));
}

}  // namespace
}  // namespace tcgemm::client
