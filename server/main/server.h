// The whole server: from options to exit code.
#ifndef TCGEMM_SERVER_MAIN_SERVER_H_
#define TCGEMM_SERVER_MAIN_SERVER_H_

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/device.h"
#include "server/main/choose_device.h"
#include "server/main/options.h"

namespace tcgemm {

enum ExitCode : int {
  kDrained = 0,
  kBadConfig = 2,
  kCannotBind = 3,
  kNoDevice = 4,
  kDeviceLost = 5,
  kDrainTimedOut = 6,
  kKernelWatchdog = 7,
};

// What multiplies. An error ends the start, INVALID_ARGUMENT with kBadConfig and any other with
// kNoDevice; its message is the log line.
using DeviceFactory = std::function<absl::StatusOr<std::unique_ptr<Device>>(const ServerOptions&)>;

// The options read again: what SIGHUP asks for. `text` says what is wrong when it is not to serve.
using OptionsSource = std::function<CommandLine()>;

// Serves until SIGTERM or SIGINT (BlockSignals first) and returns the exit code. Prints the READY
// line on stdout when the self-test has passed. On a lost or hung device or a drain that timed out
// it does not return: it ends the process with that code, since device work may still be under way.
// SIGHUP reads `source`, if there is one, and the files again; what is wrong changes nothing.
int RunServer(const ServerOptions& options, const DeviceFactory& create_device = CreateDevice,
              OptionsSource source = nullptr);

}  // namespace tcgemm

#endif  // TCGEMM_SERVER_MAIN_SERVER_H_
