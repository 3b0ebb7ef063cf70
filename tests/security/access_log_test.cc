#include "server/security/access_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/security/test_certificates.h"

namespace tcgemm {
namespace {

AccessEntry Entry() {
  return {.method = "Matmul",
          .code = absl::StatusCode::kOk,
          .duration = std::chrono::microseconds(1500),
          .caller = {.identity = "token:alice"},
          .peer = PeerKind::kTls,
          .bytes_in = 100,
          .bytes_out = 50};
}

std::vector<nlohmann::json> Lines(const std::string& path) {
  std::ifstream file(path);
  std::vector<nlohmann::json> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

TEST(AccessLogTest, ALineSaysWhatIsKnown) {
  EXPECT_EQ(FormatAccess(Entry(), 1'800'000'000'123),
            R"({"time":"2027-01-15T08:00:00.123Z","method":"Matmul","code":"OK",)"
            R"("duration_ms":1.5,"caller":"token:alice","peer":"tls","bytes_in":100,)"
            R"("bytes_out":50})");
  AccessEntry full = Entry();
  full.code = absl::StatusCode::kResourceExhausted;
  full.shape = {.m = 2, .n = 3, .k = 4};
  full.stages.emplace();
  (*full.stages)[static_cast<size_t>(Stage::kQueue)] = std::chrono::microseconds(250);
  full.trace_id = "0af7651916cd43dd8448eb211c80319c";
  const nlohmann::json line = nlohmann::json::parse(FormatAccess(full, 0));
  EXPECT_EQ(line["code"], "RESOURCE_EXHAUSTED");
  EXPECT_EQ(line["m"], 2);
  EXPECT_EQ(line["n"], 3);
  EXPECT_EQ(line["k"], 4);
  EXPECT_EQ(line["stages_ms"]["queue"], 0.25);
  EXPECT_EQ(line["stages_ms"].size(), static_cast<size_t>(kStageCount));
  EXPECT_EQ(line["trace_id"], full.trace_id);
}

TEST(AccessLogTest, NamesCannotForgeALine) {
  AccessEntry entry = Entry();
  entry.caller.identity = "cert:a\"}\n{\"code\":\"\xff";
  const std::string line = FormatAccess(entry, 0);
  EXPECT_EQ(line.find('\n'), std::string::npos);
  EXPECT_EQ(nlohmann::json::parse(line)["code"], "OK");
}

TEST(AccessLogTest, TraceIds) {
  const std::string id = "0af7651916cd43dd8448eb211c80319c";
  EXPECT_EQ(TraceIdOf("00-" + id + "-b7ad6b7169203331-01"), id);
  EXPECT_EQ(TraceIdOf("cc-" + id + "-b7ad6b7169203331-01-later-versions"), id);
  for (const std::string& wrong :
       {std::string(), std::string("00"), "00-" + id, "00-" + id + "-b7ad6b716920333-01",
        "00-" + id.substr(1) + "-b7ad6b7169203331-01",
        "00-" + std::string(32, '0') + "-b7ad6b7169203331-01",
        "00-" + std::string(32, 'G') + "-b7ad6b7169203331-01"}) {
    EXPECT_EQ(TraceIdOf(wrong), "") << wrong;
  }
}

TEST(AccessLogTest, LinesAreAddedToTheFile) {
  const TestFolder folder;
  const std::string path = folder.Write("log", "{\"first\": 1}\n");
  {
    const auto log = AccessLog::Open(path).value();
    for (int i = 0; i < 100; ++i) log->Write(Entry());
  }
  const auto lines = Lines(path);
  ASSERT_EQ(lines.size(), 101u);
  EXPECT_EQ(lines[0]["first"], 1);
  EXPECT_EQ(lines[100]["method"], "Matmul");
}

TEST(AccessLogTest, ARotatedFileIsLeft) {
  const TestFolder folder;
  const std::string path = folder.path("log");
  {
    const auto log = AccessLog::Open(path).value();
    log->Write(Entry());
    // Written, so that it is the old file's.
    while (Lines(path).empty()) {
    }
    ASSERT_EQ(std::rename(path.c_str(), folder.path("old").c_str()), 0);
    ASSERT_TRUE(log->Reopen().ok());
    log->Write(Entry());
    log->Write(Entry());
  }
  EXPECT_EQ(Lines(folder.path("old")).size(), 1u);
  EXPECT_EQ(Lines(path).size(), 2u);
}

TEST(AccessLogTest, AFileThatCannotBeOpenedIsNamed) {
  const TestFolder folder;
  const absl::Status missing = AccessLog::Open(folder.path("no/log")).status();
  EXPECT_TRUE(absl::IsNotFound(missing));
  EXPECT_EQ(missing.message(),
            "--access-log " + folder.path("no/log") + ": No such file or directory");
  EXPECT_TRUE(absl::IsInvalidArgument(AccessLog::Open(folder.path("")).status()));
}

TEST(AccessLogTest, AFullQueueDropsAndSaysHowMany) {
  const TestFolder folder;
  const std::string path = folder.path("log");
  constexpr size_t kCalls = AccessLog::kMaxWaitingLines + 5000;
  {
    const auto log = AccessLog::Open(path).value();
    for (size_t i = 0; i < kCalls; ++i) log->Write(Entry());
  }
  // However many the thread wrote meanwhile: none is lost without a word.
  size_t seen = 0;
  for (const nlohmann::json& line : Lines(path)) {
    seen += line.contains("dropped") ? line["dropped"].get<size_t>() : 1;
  }
  EXPECT_EQ(seen, kCalls);
}

}  // namespace
}  // namespace tcgemm
