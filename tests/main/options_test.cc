#include "server/main/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <map>
#include <string>
#include <vector>

namespace tcgemm {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kMachine = uint64_t{8} << 30;

CommandLine Parse(const std::vector<std::string>& args,
                  const std::map<std::string, std::string>& environment = {}) {
  return ParseCommandLine(
      args,
      [&](const std::string& name) -> std::optional<std::string> {
        const auto it = environment.find(name);
        if (it == environment.end()) return std::nullopt;
        return it->second;
      },
      kMachine);
}

class ConfigFile {
 public:
  explicit ConfigFile(const std::string& text)
      : path_(::testing::TempDir() + "/tcgemm-options-" + std::to_string(getpid()) + ".toml") {
    std::ofstream(path_) << text;
  }
  ~ConfigFile() { std::remove(path_.c_str()); }
  std::string flag() const { return "--config=" + path_; }

 private:
  const std::string path_;
};

TEST(OptionsTest, DefaultsServe) {
  const CommandLine line = Parse({});
  ASSERT_TRUE(line.serve) << line.text;
  EXPECT_EQ(line.options.listen, std::vector<std::string>({"127.0.0.1:50051"}));
  EXPECT_EQ(line.options.max_batch, 64);
  EXPECT_GT(line.options.pinned_bytes, 0u);
  EXPECT_GE(line.options.queue_bytes, line.options.max_message_bytes);
}

TEST(OptionsTest, FlagsEnvironmentFileInThatOrder) {
  const ConfigFile file("max-batch = 3\nmax-inflight = 33\ndrain-delay = \"3s\"\n");
  const std::map<std::string, std::string> environment = {{"TCGEMM_MAX_BATCH", "2"},
                                                          {"TCGEMM_MAX_INFLIGHT", "22"}};
  const CommandLine line = Parse({file.flag(), "--max-batch=1"}, environment);
  ASSERT_TRUE(line.serve) << line.text;
  EXPECT_EQ(line.options.max_batch, 1);
  EXPECT_EQ(line.options.max_inflight, 22);
  EXPECT_EQ(line.options.drain_delay, std::chrono::seconds(3));
}

TEST(OptionsTest, ListsRepeatOrTakeCommas) {
  const std::vector<std::string> both = {"127.0.0.1:1", "unix:/x"};
  EXPECT_EQ(Parse({"--listen", "127.0.0.1:1", "--listen", "unix:/x"}).options.listen, both);
  EXPECT_EQ(Parse({}, {{"TCGEMM_LISTEN", "127.0.0.1:1,unix:/x"}}).options.listen, both);
  const ConfigFile file("listen = [\"127.0.0.1:1\", \"unix:/x\"]\n");
  EXPECT_EQ(Parse({file.flag()}).options.listen, both);
}

TEST(OptionsTest, TheConfigFileMayComeFromTheEnvironment) {
  const ConfigFile file("max-batch = 5\n");
  EXPECT_EQ(Parse({}, {{"TCGEMM_CONFIG", file.flag().substr(9)}}).options.max_batch, 5);
}

struct BadLine {
  std::vector<std::string> args;
  std::string word;
};

TEST(OptionsTest, ErrorsNameTheFlag) {
  for (const BadLine& bad :
       std::vector<BadLine>{{{"--nonsense"}, "nonsense"},
                            {{"stray"}, "stray"},
                            {{"--max-batch=0"}, "max-batch"},
                            {{"--max-batch=1025"}, "max-batch"},
                            {{"--max-batch=many"}, "max-batch"},
                            {{"--pinned-bytes=-1"}, "pinned-bytes"},
                            {{"--pinned-bytes=1"}, "pinned-bytes"},
                            {{"--pinned-bytes=99999999999999999999"}, "pinned-bytes"},
                            {{"--drain-delay=5"}, "drain-delay"},
                            {{"--max-message-bytes=3GiB"}, "max-message-bytes"},
                            {{"--queue-bytes=1MiB"}, "queue-bytes"},
                            {{"--resident-bytes=1"}, "resident-bytes"},
                            {{"--device=tpu"}, "device"},
                            {{"--device=cuda:x"}, "device"},
                            {{"--cpu-backend=mkl"}, "cpu-backend"},
                            {{"--log-level=loud"}, "log-level"},
                            {{"--listen=nowhere"}, "nowhere"},
                            {{"--config=/nonexistent/file"}, "nonexistent"}}) {
    const CommandLine line = Parse(bad.args);
    EXPECT_FALSE(line.serve) << bad.args[0];
    EXPECT_EQ(line.exit_code, 2) << bad.args[0];
    EXPECT_THAT(line.text, HasSubstr(bad.word));
  }
}

TEST(OptionsTest, UnknownKeysInTheFileAreErrors) {
  const ConfigFile file("max-batch = 3\nmax-bach = 4\n");
  const CommandLine line = Parse({file.flag()});
  EXPECT_EQ(line.exit_code, 2);
  EXPECT_THAT(line.text, HasSubstr("max-bach"));
}

TEST(OptionsTest, PrintedConfigReadsBack) {
  const CommandLine printed =
      Parse({"--print-config", "--max-batch=9", "--drain-delay=1500ms", "--reflection=false",
             "--listen=unix:/a\"b", "--listen=127.0.0.1:7", "--pinned-bytes=64MiB"});
  EXPECT_EQ(printed.exit_code, 0);
  EXPECT_FALSE(printed.serve);
  const ConfigFile file(printed.text);
  const CommandLine again = Parse({file.flag()});
  ASSERT_TRUE(again.serve) << again.text;
  EXPECT_EQ(ToToml(again.options), printed.text);
  EXPECT_EQ(again.options.max_batch, 9);
  EXPECT_FALSE(again.options.reflection);
}

TEST(OptionsTest, AnswersInsteadOfServing) {
  EXPECT_THAT(Parse({"--version"}).text, HasSubstr("tcgemm-server "));
  EXPECT_THAT(Parse({"--help"}).text, HasSubstr("--drain-delay"));
  EXPECT_EQ(Parse({"--check-config"}).exit_code, 0);
  EXPECT_EQ(Parse({"--check-config", "--max-batch=0"}).exit_code, 2);
}

TEST(ParseDurationTest, Units) {
  EXPECT_EQ(ParseDuration("7ns").value(), Nanos(7));
  EXPECT_EQ(ParseDuration("250us").value(), std::chrono::microseconds(250));
  EXPECT_EQ(ParseDuration("250ms").value(), std::chrono::milliseconds(250));
  EXPECT_EQ(ParseDuration("30s").value(), std::chrono::seconds(30));
  EXPECT_EQ(ParseDuration("5m").value(), std::chrono::minutes(5));
  EXPECT_EQ(ParseDuration("2h").value(), std::chrono::hours(2));
  for (const char* bad :
       {"", "5", "s", "-1s", "1.5s", "1 s", "5x", "99999999999h", "18446744073709551616ns"}) {
    EXPECT_FALSE(ParseDuration(bad).ok()) << bad;
  }
}

TEST(ParseBytesTest, Units) {
  EXPECT_EQ(ParseBytes("4096").value(), 4096u);
  EXPECT_EQ(ParseBytes("4B").value(), 4u);
  EXPECT_EQ(ParseBytes("1KiB").value(), 1024u);
  EXPECT_EQ(ParseBytes("3MiB").value(), 3u << 20);
  EXPECT_EQ(ParseBytes("2GiB").value(), uint64_t{2} << 30);
  EXPECT_EQ(ParseBytes("1TiB").value(), uint64_t{1} << 40);
  EXPECT_EQ(ParseBytes("1KB").value(), 1000u);
  EXPECT_EQ(ParseBytes("1GB").value(), 1000000000u);
  for (const char* bad :
       {"", "GiB", "-1", "1.5GiB", "1 GiB", "5x", "8388608TiB", "18446744073709551616"}) {
    EXPECT_FALSE(ParseBytes(bad).ok()) << bad;
  }
}

}  // namespace
}  // namespace tcgemm
