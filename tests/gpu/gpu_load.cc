#include "tests/gpu/gpu_load.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

extern char** environ;

namespace tcgemm {
namespace {

constexpr char kVariable[] = "TCGEMM_GPU_TEST_LOAD";
constexpr char kFilter[] = "--gtest_filter=GpuLoadTest.UntilItsInputEnds";
constexpr int64_t kSide = 2048;

// The other process.
TEST(GpuLoadTest, UntilItsInputEnds) {
  if (std::getenv(kVariable) == nullptr) GTEST_SKIP() << "the load of another test";
  ASSERT_NE(Gpu::Get(), nullptr) << Gpu::WhyNot();
  absl::StatusOr<GpuLoad> load = GpuLoad::Create(Gpu::Get()->device());
  ASSERT_TRUE(load.ok()) << load.status();
  pollfd input{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
  bool told = false;
  while (poll(&input, 1, 0) == 0) {
    ASSERT_TRUE(load->Enqueue(50).ok());
    const absl::Status done = load->Finish();
    ASSERT_TRUE(done.ok()) << done;
    if (!std::exchange(told, true)) {
      ASSERT_EQ(write(STDERR_FILENO, "!", 1), 1);
    }
  }
}

// Until the other process writes its sign to its standard error.
absl::Status WaitForSign(int fd) {
  char sign = 0;
  while (read(fd, &sign, 1) == 1) {
    if (sign == '!') return absl::OkStatus();
  }
  return absl::UnavailableError("the loading process ended before it began");
}

}  // namespace

absl::StatusOr<GpuLoad> GpuLoad::Create(Device& device) {
  constexpr size_t kBytes = size_t{kSide} * kSide * 2;
  GpuLoad load;
  TCGEMM_ASSIGN_OR_RETURN(load.lane_,
                          GpuLane::Create(device, {.device = 3 * kBytes, .pinned = kBytes}));
  FillWithNormals(load.lane_.pinned(), kBytes, 3);
  std::byte* const at = load.lane_.device_memory();
  for (int i = 0; i < 2; ++i) {
    TCGEMM_RETURN_IF_ERROR(load.lane_.Upload(load.lane_.pinned(), at + i * kBytes, kBytes));
  }
  load.problem_.a = {at, kSide, kSide, kSide, DType::kBf16, false};
  load.problem_.b = {at + kBytes, kSide, kSide, kSide, DType::kBf16, true};
  load.problem_.d = {at + 2 * kBytes, kSide, kSide, kSide, DType::kBf16, false};
  TCGEMM_ASSIGN_OR_RETURN(load.plan_, ChoosePlan(device.plan_limits(), {&load.problem_, 1}));
  TCGEMM_RETURN_IF_ERROR(load.lane_.Finish());
  return load;
}

absl::Status GpuLoad::Enqueue(int products) {
  for (int i = 0; i < products; ++i) {
    TCGEMM_RETURN_IF_ERROR(lane_.Launch(plan_, {&problem_, 1}));
  }
  return absl::OkStatus();
}

absl::StatusOr<LoadingProcess> LoadingProcess::Start() {
  int input[2];
  int errors[2];
  if (pipe(input) != 0 || pipe(errors) != 0) return absl::UnavailableError("pipe");
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, input[0], STDIN_FILENO);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, errors[1], STDERR_FILENO);
  for (int fd : {input[0], input[1], errors[0], errors[1]}) {
    posix_spawn_file_actions_addclose(&actions, fd);
  }
  std::string program = "/proc/self/exe";
  std::string filter = kFilter;
  char* arguments[] = {program.data(), filter.data(), nullptr};
  std::string variable = absl::StrCat(kVariable, "=1");
  std::vector<char*> variables;
  for (char** it = environ; *it != nullptr; ++it) variables.push_back(*it);
  variables.insert(variables.end(), {variable.data(), nullptr});
  pid_t pid = -1;
  const int failed =
      posix_spawn(&pid, program.c_str(), &actions, nullptr, arguments, variables.data());
  posix_spawn_file_actions_destroy(&actions);
  close(input[0]);
  close(errors[1]);
  if (failed != 0) {
    close(input[1]);
    close(errors[0]);
    return absl::UnavailableError("posix_spawn");
  }
  LoadingProcess process(pid, input[1]);
  const absl::Status begun = WaitForSign(errors[0]);
  close(errors[0]);
  TCGEMM_RETURN_IF_ERROR(begun);
  return process;
}

LoadingProcess::~LoadingProcess() {
  if (input_ >= 0) close(input_);
  if (pid_ < 0) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

absl::StatusOr<int> LoadingProcess::Stop() {
  close(std::exchange(input_, -1));
  int status = 0;
  const pid_t ended = waitpid(std::exchange(pid_, -1), &status, 0);
  if (ended < 0 || !WIFEXITED(status)) return absl::InternalError("the loading process was killed");
  return WEXITSTATUS(status);
}

}  // namespace tcgemm
