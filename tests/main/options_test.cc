#include "server/main/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <fstream>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "server/engine/memory_limit.h"
#include "server/main/options_security.h"

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
  for (const BadLine& bad : std::vector<BadLine>{
           {{"--nonsense"}, "nonsense"},
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
           {{"--resident-bytes=1PiB"}, "resident-bytes"},
           {{"--resident-bytes=1TiB", "--device=cpu"}, "resident-bytes"},
           {{"--resident-bytes=1MiB", "--resident-bytes-per-caller=2MiB"},
            "at most --resident-bytes, 1048576"},
           {{"--allow-shared-memory"}, "--listen unix:"},
           {{"--tls-cert=c"}, "--tls-cert without --tls-key"},
           {{"--tls-key=k"}, "--tls-key without --tls-cert"},
           {{"--tls-client-ca=a"}, "--tls-client-ca needs TLS"},
           {{"--tls-client-auth=maybe"}, "tls-client-auth"},
           {{"--tls-cert=a#b", "--tls-key=k"}, "--tls-cert 'a#b'"},
           {{"--reflection=true"}, "reflection"},
           {{"--debug-pages=true"}, "debug-pages"},
           {{"--slow-request=1"}, "slow-request"},
           {{"--token-file=t"}, "--allow-plaintext-tokens"},
           {{"--token-file=t", "--listen=unix:/x", "--listen=127.0.0.1:1"}, "needs TLS"},
           {{"--token-file=t\"", "--listen=unix:/x"}, "--token-file"},
           {{"--max-inflight-per-caller=-1"}, "max-inflight-per-caller"},
           {{"--max-concurrent-streams=0"}, "max-concurrent-streams"},
           {{"--max-connection-age=1"}, "max-connection-age"},
           {{"--listen=0.0.0.0:1"}, "--insecure-listen-any"},
           {{"--listen=127.0.0.1:1", "--listen=[::]:1"}, "--listen [::]:1 can be reached"},
           {{"--listen=unix:/x", "--allow-shared-memory", "--shared-memory-bytes=1TiB"},
            "--shared-memory-bytes"},
           {{"--listen=unix:/x", "--allow-shared-memory", "--shared-memory-bytes=1MiB",
             "--shared-memory-caller-bytes=2MiB"},
            "--shared-memory-caller-bytes"},
           {{"--preload=w"}, "NAME=FILE"},
           {{"--preload==f"}, "NAME=FILE"},
           {{"--preload=n="}, "NAME=FILE"},
           {{"--preload=n=a#b"}, "n=a#b"},
           {{"--device=tpu"}, "device"},
           {{"--device=cuda:x"}, "device"},
           {{"--cpu-backend=mkl"}, "cpu-backend"},
           {{"--log-level=loud"}, "log-level"},
           {{"--listen=nowhere"}, "nowhere"},
           {{"--listen=127.0.0.1:70000"}, "--listen: address '127.0.0.1:70000'"},
           {{"--check-config", "--metrics-listen=127.0.0.1:70000"}, "--metrics-listen"},
           {{"--insecure-listen-any="}, "--insecure-listen-any is empty"},
           {{"--listen=unix:/a\"b"}, "unix:/a"},
           {{"--listen=unix:/a\\b"}, "unix:/a"},
           {{"--listen=unix:/a#b"}, "unix:/a"},
           {{"--metrics-listen=h\n:1"}, "h\\n:1"},
           {{"--receive-timeout=0s"}, "receive-timeout"},
           {{"--send-timeout=0s"}, "send-timeout"},
           {{"--watchdog-min=0s"}, "watchdog-min"},
           {{"--drain-timeout=25h"}, "drain-timeout: '25h' must be from 0ms to"},
           {{"--drain-timeout=2562047h"}, "drain-timeout"},
           {{"--pinned-bytes=9GiB"}, "pinned-bytes"},
           {{"--pinned-bytes=5GiB", "--queue-bytes=5GiB"}, "queue-bytes"},
           {{"--check-config", "--pinned-bytes=9GiB"}, "limit"},
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
      Parse({"--print-config", "--max-batch=9", "--drain-delay=1500ms", "--reflection=off",
             "--listen=unix:/a [b]'s", "--listen=127.0.0.1:7", "--pinned-bytes=64MiB"});
  EXPECT_EQ(printed.exit_code, 0);
  EXPECT_FALSE(printed.serve);
  const ConfigFile file(printed.text);
  const CommandLine again = Parse({file.flag()});
  ASSERT_TRUE(again.serve) << again.text;
  EXPECT_EQ(ToToml(again.options), printed.text);
  EXPECT_EQ(again.options.max_batch, 9);
  EXPECT_EQ(again.options.reflection, "off");
}

// A value of each flag other than its default. Lines of --print-config: the flag's key first.
const std::map<std::string, std::string> kSamples = {{"listen", "127.0.0.1:5"},
                                                     {"metrics-listen", "127.0.0.1:6"},
                                                     {"device", "cpu"},
                                                     {"cpu-backend", "plain"},
                                                     {"cpu-threads", "3"},
                                                     {"max-batch", "5"},
                                                     {"max-queue-delay-us", "7"},
                                                     {"max-inflight", "9"},
                                                     {"max-message-bytes", "1MiB"},
                                                     {"pinned-bytes", "20MiB"},
                                                     {"device-bytes", "3MiB"},
                                                     {"queue-bytes", "512MiB"},
                                                     {"resident-bytes", "1MiB"},
                                                     {"resident-bytes-per-caller", "1KiB"},
                                                     {"preload", "w=w.npy"},
                                                     {"allow-shared-memory", "true"},
                                                     {"shared-memory-bytes", "1MiB"},
                                                     {"shared-memory-caller-bytes", "4096"},
                                                     {"decode-threads", "4"},
                                                     {"admission-wait", "1s"},
                                                     {"receive-timeout", "2s"},
                                                     {"send-timeout", "3s"},
                                                     {"small-batch-bytes", "4KiB"},
                                                     {"watchdog-min", "5s"},
                                                     {"drain-delay", "4s"},
                                                     {"drain-timeout", "5s"},
                                                     {"log-level", "error"},
                                                     {"log-format", "json"},
                                                     {"reflection", "on"},
                                                     {"debug-pages", "on"},
                                                     {"slow-request", "8s"},
                                                     {"tls-cert", "cert.pem"},
                                                     {"tls-key", "key.pem"},
                                                     {"tls-client-ca", "ca.pem"},
                                                     {"tls-client-auth", "request"},
                                                     {"insecure-listen-any", "true"},
                                                     {"token-file", "tokens"},
                                                     {"allow-plaintext-tokens", "true"},
                                                     {"max-inflight-per-caller", "6"},
                                                     {"queue-bytes-per-caller", "2MiB"},
                                                     {"access-log", "calls.log"},
                                                     {"max-connection-age", "6s"},
                                                     {"max-connection-age-grace", "7s"},
                                                     {"max-concurrent-streams", "8"}};

TEST(OptionsTest, EveryFlagIsAKeyAndAnEnvironmentVariable) {
  // Shared memory needs a unix socket, each flag of TLS the others; defaults have none.
  const std::map<std::string, std::string> on_unix = {
      {"TCGEMM_LISTEN", "unix:/x"}, {"TCGEMM_TLS_CERT", "c"}, {"TCGEMM_TLS_KEY", "k"}};
  const std::string defaults = Parse({"--print-config"}, on_unix).text;
  // An empty list, --preload's default, has no line.
  EXPECT_EQ(std::count(defaults.begin(), defaults.end(), '\n') + 1,
            static_cast<long>(kSamples.size()));
  for (const auto& [flag, value] : kSamples) {
    std::string variable = "TCGEMM_" + flag;
    for (char& c : variable) c = c == '-' ? '_' : static_cast<char>(std::toupper(c));
    const std::string given = Parse({"--print-config", "--" + flag + "=" + value}, on_unix).text;
    EXPECT_THAT(given, HasSubstr(flag + " = "));
    EXPECT_NE(given, defaults) << flag;
    std::map<std::string, std::string> environment = on_unix;
    environment[variable] = value;
    EXPECT_EQ(Parse({"--print-config"}, environment).text, given) << variable;
    const ConfigFile file(flag + " = \"" + value + "\"\n");
    // The environment wins over the file.
    std::map<std::string, std::string> without = on_unix;
    without.erase(variable);
    EXPECT_EQ(Parse({"--print-config", file.flag()}, without).text, given) << flag;
    environment[variable] = "nonsense#";
    EXPECT_EQ(Parse({"--print-config", "--" + flag, value}, environment).text, given) << flag;
  }
}

TEST(OptionsTest, AnyConfigurationReadsBack) {
  EXPECT_TRUE(rc::check("print, read, print", [] {
    ServerOptions options = Parse({}).options;
    options.max_batch = *rc::gen::inRange(1, 1025);
    options.max_queue_delay_us = *rc::gen::inRange<int64_t>(0, 60'000'001);
    options.pinned_bytes = *rc::gen::inRange<uint64_t>(4096, kMachine / 2);
    options.drain_delay = Nanos(*rc::gen::inRange<int64_t>(0, 86'400'000'000'000));
    options.receive_timeout = Nanos(*rc::gen::inRange<int64_t>(1'000'000, 86'400'000'000'000));
    options.insecure_listen_any = *rc::gen::arbitrary<bool>();
    const std::string path = *rc::gen::nonEmpty(
        rc::gen::container<std::string>(rc::gen::elementOf(std::string("abc-_.:/ '[]="))));
    options.listen = {"unix:/" + path.substr(0, 100) + "x"};
    const ConfigFile file(ToToml(options));
    const CommandLine again = Parse({file.flag()});
    RC_ASSERT(again.serve);
    RC_ASSERT(ToToml(again.options) == ToToml(options));
  }));
}

TEST(OptionsTest, BeyondLoopbackItTakesTlsOrTheFlag) {
  const std::string any = "--listen=0.0.0.0:1";
  EXPECT_TRUE(Parse({any, "--insecure-listen-any"}).serve);
  EXPECT_TRUE(Parse({any, "--tls-cert=c", "--tls-key=k"}).serve);
  EXPECT_TRUE(Parse({"--listen=127.0.0.2:1", "--listen=unix:/x", "--listen=[::1]:1"}).serve);
  EXPECT_EQ(RemoteAddresses(Parse({any, "--listen=unix:/x", "--insecure-listen-any"}).options),
            std::vector<std::string>({"0.0.0.0:1"}));
}

TEST(OptionsTest, TokensAreTakenWhereNobodyReadsThem) {
  EXPECT_TRUE(Parse({"--token-file=t", "--listen=unix:/x"}).serve);
  EXPECT_TRUE(Parse({"--token-file=t", "--tls-cert=c", "--tls-key=k"}).serve);
  EXPECT_TRUE(Parse({"--token-file=t", "--allow-plaintext-tokens"}).serve);
}

TEST(OptionsTest, ReflectionFollowsWhoMayReachTheServer) {
  const std::string any = "--listen=0.0.0.0:1";
  EXPECT_TRUE(ServesReflection(Parse({}).options));
  EXPECT_TRUE(ServesReflection(Parse({"--tls-cert=c", "--tls-key=k"}).options));
  EXPECT_FALSE(ServesReflection(Parse({any, "--insecure-listen-any"}).options));
  EXPECT_FALSE(ServesReflection(Parse({any, "--tls-cert=c", "--tls-key=k"}).options));
  EXPECT_TRUE(ServesReflection(Parse({any, "--insecure-listen-any", "--reflection=on"}).options));
  EXPECT_FALSE(ServesReflection(Parse({"--reflection=off"}).options));
}

TEST(OptionsTest, DebugPagesFollowWhoMayReachTheMetrics) {
  const std::string any = "--metrics-listen=0.0.0.0:1";
  EXPECT_TRUE(ServesDebugPages(Parse({}).options));
  EXPECT_TRUE(ServesDebugPages(Parse({"--metrics-listen=127.0.0.2:1"}).options));
  EXPECT_FALSE(ServesDebugPages(Parse({any}).options));
  EXPECT_FALSE(ServesDebugPages(Parse({"--metrics-listen=192.0.2.1:1"}).options));
  EXPECT_TRUE(ServesDebugPages(Parse({any, "--debug-pages=on"}).options));
  EXPECT_FALSE(ServesDebugPages(Parse({"--debug-pages=off"}).options));
}

TEST(OptionsTest, AnswersInsteadOfServing) {
  EXPECT_THAT(Parse({"--version"}).text, HasSubstr("backends "));
  EXPECT_THAT(Parse({"--version"}).text, HasSubstr("tcgemm-server "));
  EXPECT_THAT(Parse({"--help"}).text, HasSubstr("--drain-delay"));
  EXPECT_EQ(Parse({"--check-config"}).exit_code, 0);
  EXPECT_EQ(Parse({"--check-config", "--max-batch=0"}).exit_code, 2);
}

TEST(OptionsTest, MatricesStayByDefault) {
  EXPECT_EQ(Parse({}).options.resident_bytes, kMachine / 8);
  // What is given is that, nothing too.
  EXPECT_EQ(Parse({"--resident-bytes=0"}).options.resident_bytes, 0u);
  EXPECT_EQ(Parse({}, {{"TCGEMM_RESIDENT_BYTES", "0"}}).options.resident_bytes, 0u);
  const ConfigFile file("resident-bytes = 0\n");
  EXPECT_EQ(Parse({file.flag()}).options.resident_bytes, 0u);
  // Where the others leave little the default is little, and the budgets fit.
  const std::vector<std::pair<std::string, uint64_t>> cases = {{"4GiB", kMachine / 16},
                                                               {"5GiB", 0}};
  for (const auto& [pinned, resident] : cases) {
    const CommandLine line = Parse(
        {"--pinned-bytes=" + pinned, "--device=cpu", "--listen=unix:/x", "--allow-shared-memory"});
    ASSERT_TRUE(line.serve) << line.text;
    EXPECT_EQ(line.options.resident_bytes, resident);
  }
}

TEST(OptionsTest, ResidentMatricesAreTheHostsOnTheCpu) {
  const auto resident = [](const std::vector<MemoryBudget>& budgets) {
    return std::find_if(
               budgets.begin(), budgets.end(),
               [](const MemoryBudget& budget) { return budget.name == "--resident-bytes"; })
        ->bytes;
  };
  const ServerOptions cpu = Parse({"--device=cpu", "--resident-bytes=3MiB"}).options;
  EXPECT_EQ(resident(HostBudgets(cpu)), 3u << 20);
  const ServerOptions any = Parse({"--resident-bytes=3MiB"}).options;
  EXPECT_EQ(resident(HostBudgets(any)), 0u);
  EXPECT_EQ(resident(HostBudgets(any, ResidentMemory::kHost)), 3u << 20);
}

TEST(OptionsTest, SharedMemoryIsAskedFor) {
  const CommandLine off = Parse({"--shared-memory-bytes=64MiB"});
  ASSERT_TRUE(off.serve) << off.text;
  EXPECT_EQ(SharedMemoryBytes(off.options), 0u);
  const std::vector<std::string> unix_only = {"--listen=unix:/x"};
  const CommandLine share = Parse({"--listen=unix:/x", "--allow-shared-memory"});
  ASSERT_TRUE(share.serve) << share.text;
  EXPECT_EQ(SharedMemoryBytes(share.options), share.options.pinned_bytes);
  const CommandLine set = Parse(unix_only, {{"TCGEMM_ALLOW_SHARED_MEMORY", "true"},
                                            {"TCGEMM_SHARED_MEMORY_BYTES", "64MiB"},
                                            {"TCGEMM_SHARED_MEMORY_CALLER_BYTES", "1MiB"}});
  ASSERT_TRUE(set.serve) << set.text;
  EXPECT_EQ(SharedMemoryBytes(set.options), 64u << 20);
  EXPECT_EQ(set.options.shared_memory_caller_bytes, 1u << 20);
  const ConfigFile file("allow-shared-memory = true\nlisten = [\"unix:/x\"]\n");
  EXPECT_TRUE(Parse({file.flag()}).options.allow_shared_memory);
  EXPECT_FALSE(Parse({file.flag(), "--allow-shared-memory=false"}).options.allow_shared_memory);
}

}  // namespace
}  // namespace tcgemm
