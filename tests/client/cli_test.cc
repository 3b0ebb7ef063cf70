// The commands of tcgemm-client below the flags: exit codes, the smoke table, proofs, .npy files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "client/cli/commands.h"
#include "client/cli/exit_code.h"
#include "client/cli/smoke.h"
#include "matrix/bf16.h"
#include "matrix/npy.h"
#include "matrix/reference.h"
#include "tests/client/naive_server.h"
#include "tests/kernels/epilogue_data.h"

namespace tcgemm::client {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

constexpr CallOptions kOptions{.timeout = std::chrono::seconds(20)};

// Multiplies right, unless `spoil` says what else call number i does.
class FakeClient final : public Client {
 public:
  absl::StatusOr<MatmulInfo> Matmul(const MatrixView& a, const MatrixView& b, DType output,
                                    Matrix& d, const CallOptions& options) override {
    return MatmulWith({}, a, b, output, d, options);
  }
  absl::StatusOr<MatmulInfo> MatmulWith(const Epilogue& epilogue, const MatrixView& a,
                                        const MatrixView& b, DType output, Matrix& d,
                                        const CallOptions&) override {
    d.Reshape(a.op_rows(), b.op_cols(), output);
    const Reference reference = ComputeReference(a, b).value();
    std::vector<uint32_t> sums;
    for (const ReferenceElement& element : reference.elements) {
      sums.push_back(std::bit_cast<uint32_t>(static_cast<float>(element.exact)));
    }
    const std::vector<uint32_t> bits =
        ForetellBits(sums, epilogue, {.m = reference.m, .n = reference.n}, DType::kFp32);
    for (size_t i = 0; i < reference.elements.size(); ++i) {
      const float value = std::bit_cast<float>(bits[i]);
      if (output == DType::kFp32) {
        d.data<float>()[i] = value;
      } else {
        d.data<Bf16>()[i] = ToBf16(value);
      }
    }
    const absl::Status status = spoil(calls++, d);
    if (!status.ok()) return status;
    return MatmulInfo{.kernel = "fake", .round_trip = Nanos(1500)};
  }
  absl::StatusOr<ServerInfo> GetServerInfo(const CallOptions&) override {
    return ServerInfo{.device = "fake"};
  }
  absl::StatusOr<Health> CheckHealth(const std::string&, const CallOptions&) override {
    return Health::kServing;
  }

  std::function<absl::Status(int, Matrix&)> spoil = [](int, Matrix&) { return absl::OkStatus(); };
  int calls = 0;
};

SmokeReport Smoke(FakeClient& client) {
  const std::vector<SmokeCase> cases = {{.m = 1, .n = 1, .k = 1},
                                        {.m = 5, .n = 7, .k = 9, .layout = "TT", .padding = 2}};
  return RunSmoke(client, "fake:1", cases, kOptions, [](const SmokeRow&) {});
}

absl::Status MakeWrong(Matrix& d) {
  d.data<char>()[d.bytes() - 1] ^= 0x40;  // the exponent's upper bit
  return absl::OkStatus();
}

TEST(ExitCodeTest, OfEveryStatus) {
  EXPECT_EQ(ExitCodeOf(absl::OkStatus()), ExitCode::kRight);
  for (int code = 1; code <= 16; ++code) {
    const bool unreachable = code == 4 || code == 14;  // DEADLINE_EXCEEDED, UNAVAILABLE
    EXPECT_EQ(ExitCodeOf(absl::Status(static_cast<absl::StatusCode>(code), "")),
              unreachable ? ExitCode::kUnreachable : ExitCode::kOtherStatus);
  }
}

TEST(ExitCodeTest, AWrongResultWins) {
  for (int code = 0; code <= 4; ++code) {
    const auto other = static_cast<ExitCode>(code);
    EXPECT_EQ(Combine(ExitCode::kWrongResult, other), ExitCode::kWrongResult);
    EXPECT_EQ(Combine(other, ExitCode::kWrongResult), ExitCode::kWrongResult);
    EXPECT_EQ(Combine(other, ExitCode::kRight), other);
  }
}

TEST(SmokeTest, AllRight) {
  FakeClient client;
  const SmokeReport report = Smoke(client);
  EXPECT_TRUE(report.ok());
  EXPECT_EQ(report.exit_code(), ExitCode::kRight);
  ASSERT_EQ(report.rows.size(), 4u);
  const auto json = nlohmann::json::parse(SmokeJson(report));
  EXPECT_EQ(json["server"], "fake:1");
  EXPECT_EQ(json["device"], "fake");
  EXPECT_EQ(json["ok"], true);
  const nlohmann::json& row = json["rows"][3];
  std::set<std::string> keys;
  for (const auto& item : row.items()) keys.insert(item.key());
  EXPECT_EQ(keys, (std::set<std::string>{"m", "n", "k", "layout", "output", "max_error_ratio", "ms",
                                         "tflops", "ok"}));
  EXPECT_EQ(row["n"], 7);
  EXPECT_EQ(row["layout"], "TT");
  EXPECT_EQ(row["output"], "fp32");
  EXPECT_LE(row["max_error_ratio"], 1.0);
}

TEST(SmokeTest, EveryCaseIsRightAndTheEpiloguesAreSeen) {
  FakeClient client;
  std::vector<SmokeCase> cases;
  std::set<Activation> activations;
  for (const SmokeCase& shape : SmokeCases()) {
    if (shape.m * shape.n * shape.k < 1 << 22) cases.push_back(shape);
    activations.insert(shape.activation);
  }
  EXPECT_EQ(activations.size(), 4u);
  const SmokeReport report = RunSmoke(client, "fake:1", cases, kOptions, [](const SmokeRow&) {});
  EXPECT_TRUE(report.ok());
  EXPECT_THAT(SmokeLine(report.rows.back()), HasSubstr("ok  (alpha, C, bias column, silu)"));
  // The product alone, where an epilogue was asked for, is wrong.
  class Forgetful final : public Client {
   public:
    explicit Forgetful(FakeClient& fake) : fake_(fake) {}
    absl::StatusOr<MatmulInfo> Matmul(const MatrixView& a, const MatrixView& b, DType output,
                                      Matrix& d, const CallOptions& options) override {
      return fake_.Matmul(a, b, output, d, options);
    }
    absl::StatusOr<MatmulInfo> MatmulWith(const Epilogue&, const MatrixView& a, const MatrixView& b,
                                          DType output, Matrix& d,
                                          const CallOptions& options) override {
      return fake_.Matmul(a, b, output, d, options);
    }
    absl::StatusOr<ServerInfo> GetServerInfo(const CallOptions&) override { return ServerInfo{}; }
    absl::StatusOr<Health> CheckHealth(const std::string&, const CallOptions&) override {
      return Health::kServing;
    }

   private:
    FakeClient& fake_;
  };
  Forgetful forgetful(client);
  const SmokeReport wrong = RunSmoke(forgetful, "fake:1", cases, kOptions, [](const SmokeRow&) {});
  for (const SmokeRow& row : wrong.rows) {
    const bool plain = row.shape.alpha == 1 && row.shape.beta == 0 &&
                       row.shape.bias == SmokeCase::Bias::kNone &&
                       row.shape.activation == Activation::kNone;
    EXPECT_EQ(row.ok, plain) << SmokeLine(row);
  }
}

TEST(ClientTest, OneThatSendsNoEpiloguesSaysSo) {
  class Plain final : public Client {
   public:
    absl::StatusOr<MatmulInfo> Matmul(const MatrixView&, const MatrixView&, DType, Matrix&,
                                      const CallOptions&) override {
      return MatmulInfo{};
    }
    absl::StatusOr<ServerInfo> GetServerInfo(const CallOptions&) override { return ServerInfo{}; }
    absl::StatusOr<Health> CheckHealth(const std::string&, const CallOptions&) override {
      return Health::kServing;
    }
  };
  Plain client;
  Matrix d;
  EXPECT_TRUE(client.MatmulWith({}, {}, {}, DType::kBf16, d, kOptions).ok());
  EXPECT_TRUE(absl::IsUnimplemented(
      client.MatmulWith({.alpha = 2}, {}, {}, DType::kBf16, d, kOptions).status()));
}

TEST(SmokeTest, AWrongElementIsFoundWhateverElseFails) {
  FakeClient client;
  client.spoil = [](int call, Matrix& d) {
    if (call == 0) return absl::InternalError("failed");
    return call == 3 ? absl::UnavailableError("gone") : call == 2 ? MakeWrong(d) : absl::OkStatus();
  };
  const SmokeReport report = Smoke(client);
  EXPECT_FALSE(report.ok());
  EXPECT_EQ(report.exit_code(), ExitCode::kWrongResult);
  EXPECT_THAT(SmokeLine(report.rows[0]), HasSubstr("failed"));
  EXPECT_THAT(SmokeLine(report.rows[2]), HasSubstr("WRONG"));
  EXPECT_THAT(SmokeLine(report.rows[2]), HasSubstr("D[4,6]"));
  const auto json = nlohmann::json::parse(SmokeJson(report));
  EXPECT_EQ(json["ok"], false);
  EXPECT_EQ(json["rows"][0]["error"], "failed");
  EXPECT_GT(json["rows"][2]["max_error_ratio"], 1.0);
}

TEST(SmokeTest, AMissingNanOrInfIsWrong) {
  FakeClient client;
  client.spoil = [](int call, Matrix& d) {
    if (call == 2) d.data<Bf16>()[0] = kCanonicalNanBf16;
    return absl::OkStatus();
  };
  const SmokeReport report = Smoke(client);
  EXPECT_EQ(report.exit_code(), ExitCode::kWrongResult);
  EXPECT_TRUE(nlohmann::json::accept(SmokeJson(report)));
}

TEST(SmokeTest, StopsWhenTheServerIsGone) {
  FakeClient client;
  client.spoil = [](int, Matrix&) { return absl::UnavailableError("gone"); };
  const SmokeReport report = Smoke(client);
  EXPECT_EQ(client.calls, 1);
  EXPECT_EQ(report.exit_code(), ExitCode::kUnreachable);
}

TEST(SmokeTest, CasesCoverWhatTheIssueAsksFor) {
  std::set<std::string> layouts;
  bool padded = false, smallest = false, largest = false, odd_k = false;
  for (const SmokeCase& shape : SmokeCases()) {
    layouts.insert(shape.layout);
    padded |= shape.padding > 0;
    smallest |= shape.m == 1 && shape.n == 1 && shape.k == 1;
    largest |= shape.m == 1024 && shape.n == 1024 && shape.k == 1024;
    odd_k |= shape.k > 16 && shape.k % 16 != 0;
  }
  EXPECT_EQ(layouts, (std::set<std::string>{"NN", "NT", "TN", "TT"}));
  EXPECT_TRUE(padded && smallest && largest && odd_k);
}

class FilesTest : public testing::Test {
 protected:
  FilesTest() : folder_(fs::path(testing::TempDir()) / ("cli_test-" + std::to_string(getpid()))) {
    fs::create_directories(folder_);
    global_.server = server_.address();
    Matrix a(5, 8, DType::kFp32), b(8, 6, DType::kFp32);
    FillNormal(a, 1);
    FillNormal(b, 2);
    EXPECT_TRUE(WriteNpy(Path("a"), a.view()).ok());
    EXPECT_TRUE(WriteNpy(Path("b"), b.view()).ok());
  }
  ~FilesTest() override { fs::remove_all(folder_); }

  std::string Path(const std::string& name) const { return (folder_ / (name + ".npy")).string(); }
  MatmulOptions Files() const { return {.a = Path("a"), .b = Path("b"), .out = Path("d")}; }

  NaiveServer server_;
  GlobalOptions global_;
  const fs::path folder_;
};

TEST_F(FilesTest, MatmulWritesWhatCheckProves) {
  for (const char* output : {"bf16", "fp32"}) {
    MatmulOptions options = Files();
    options.output = output;
    options.check = true;
    EXPECT_EQ(RunMatmul(global_, options), ExitCode::kRight);
    EXPECT_EQ(RunCheck(global_, {.a = Path("a"), .b = Path("b"), .d = Path("d")}),
              ExitCode::kRight);
  }
}

TEST_F(FilesTest, MatmulAndCheckKnowEpilogues) {
  Matrix c(5, 6, DType::kFp32), bias(1, 5, DType::kBf16);
  FillNormal(c, 3);
  FillNormal(bias, 4);
  ASSERT_TRUE(WriteNpy(Path("c"), c.view()).ok());
  ASSERT_TRUE(WriteNpy(Path("bias"), bias.view()).ok());  // 5 elements: a column, as M is 5
  MatmulOptions options = Files();
  options.check = true;
  options.epilogue = {.alpha = 0.5f, .c = Path("c"), .bias = Path("bias"), .activation = "gelu"};
  EXPECT_EQ(RunMatmul(global_, options), ExitCode::kRight);
  CheckOptions check = {.a = Path("a"), .b = Path("b"), .d = Path("d")};
  EXPECT_EQ(RunCheck(global_, check), ExitCode::kWrongResult) << "the epilogue is not said";
  check.epilogue = options.epilogue;
  EXPECT_EQ(RunCheck(global_, check), ExitCode::kRight);
  check.epilogue.beta = 0.9f;
  EXPECT_EQ(RunCheck(global_, check), ExitCode::kWrongResult);
  check.epilogue.bias_axis = "row";
  EXPECT_EQ(RunCheck(global_, check), ExitCode::kUsage);
  options.epilogue = {.beta = 1};
  EXPECT_EQ(RunMatmul(global_, options), ExitCode::kUsage) << "--beta without --c";
  options.epilogue = {.bias = Path("c")};
  EXPECT_EQ(RunMatmul(global_, options), ExitCode::kUsage) << "no vector";
  options.epilogue = {.c = Path("missing")};
  EXPECT_EQ(RunMatmul(global_, options), ExitCode::kUsage);
  options.epilogue = {.c = Path("c")};
  options.out = Path("c");
  EXPECT_EQ(RunMatmul(global_, options), ExitCode::kUsage) << "-o would replace C";
}

TEST_F(FilesTest, TransposesAreOfTheFiles) {
  MatmulOptions options = {.a = Path("b"), .b = Path("a"), .out = Path("d")};
  options.transpose_a = options.transpose_b = true;
  EXPECT_EQ(RunMatmul(global_, options), ExitCode::kRight);
  CheckOptions check = {.a = Path("b"), .b = Path("a"), .d = Path("d")};
  EXPECT_EQ(RunCheck(global_, check), ExitCode::kUsage);  // the shapes do not fit
  check.transpose_a = check.transpose_b = true;
  EXPECT_EQ(RunCheck(global_, check), ExitCode::kRight);
}

TEST_F(FilesTest, AWrongResultEndsInOne) {
  server_.SpoilResults();
  MatmulOptions options = Files();
  EXPECT_EQ(RunMatmul(global_, options), ExitCode::kRight);  // nobody asked for a proof
  EXPECT_EQ(RunCheck(global_, {.a = Path("a"), .b = Path("b"), .d = Path("d")}),
            ExitCode::kWrongResult);
  options.check = true;
  EXPECT_EQ(RunMatmul(global_, options), ExitCode::kWrongResult);
}

TEST_F(FilesTest, UsageErrorsCallNobody) {
  MatmulOptions options = Files();
  options.a = Path("missing");
  EXPECT_EQ(RunMatmul(global_, options), ExitCode::kUsage);
  options = Files();
  options.out = Path("a");
  EXPECT_EQ(RunMatmul(global_, options), ExitCode::kUsage);
  options = Files();
  options.random = "2x3x4";
  EXPECT_EQ(RunMatmul(global_, options), ExitCode::kUsage);
  options = Files();
  options.out = "";
  EXPECT_EQ(RunMatmul(global_, options), ExitCode::kUsage);
  for (const char* random : {"2x3", "2x3x4x5", "0x1x1", "-1x2x3", "axbxc", "99999999999x1x1"}) {
    EXPECT_EQ(RunMatmul(global_, {.random = random}), ExitCode::kUsage) << random;
  }
  std::ofstream(Path("a")) << "not an array";
  EXPECT_EQ(RunMatmul(global_, Files()), ExitCode::kUsage);
  EXPECT_EQ(server_.matmul_calls(), 0);
}

TEST_F(FilesTest, AnUnwritableOutputIsAFailure) {
  MatmulOptions options = Files();
  options.out = (folder_ / "no" / "such" / "d.npy").string();
  EXPECT_EQ(RunMatmul(global_, options), ExitCode::kOtherStatus);
}

TEST_F(FilesTest, StatusesBecomeExitCodes) {
  server_.FailNext(1, /*INTERNAL*/ 13, "");
  EXPECT_EQ(RunMatmul(global_, {.random = "2x3x4"}), ExitCode::kOtherStatus);
  EXPECT_EQ(RunMatmul(global_, {.random = "2x3x4"}), ExitCode::kRight);
  EXPECT_EQ(RunHealth(global_, ""), ExitCode::kRight);
  EXPECT_EQ(RunHealth(global_, "nobody.Knows"), ExitCode::kWrongResult);
  EXPECT_EQ(RunInfo(global_), ExitCode::kRight);
  global_.server = "127.0.0.1:1";
  EXPECT_EQ(RunHealth(global_, ""), ExitCode::kUnreachable);
  global_.server = "nonsense";
  EXPECT_EQ(RunInfo(global_), ExitCode::kUsage);
}

}  // namespace
}  // namespace tcgemm::client
