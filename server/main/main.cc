#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "server/engine/memory_limit.h"
#include "server/main/allocator.h"
#include "server/main/logging.h"
#include "server/main/open_files.h"
#include "server/main/options.h"
#include "server/main/server.h"
#include "server/main/signals.h"

int main(int argc, char** argv) {
  tcgemm::TuneAllocator();
  tcgemm::BlockSignals();
  tcgemm::RaiseOpenFileLimit();
  const auto environment = [](const std::string& name) -> std::optional<std::string> {
    const char* const value = std::getenv(name.c_str());
    if (value == nullptr) return std::nullopt;
    return value;
  };
  const auto limit = tcgemm::DetectMemoryLimit(tcgemm::RealFileReader());
  const auto read = [args = std::vector<std::string>(argv + 1, argv + argc), environment,
                     bytes = limit.ok() ? limit->bytes : 0] {
    return tcgemm::ParseCommandLine(args, environment, bytes);
  };
  const auto read_again = [read] {
    tcgemm::CommandLine line = read();
    // Caught half-way through being written, it would lift every limit.
    if (line.config_keys == size_t{0}) return tcgemm::CommandLine{.text = "--config sets nothing"};
    return line;
  };
  const tcgemm::CommandLine line = read();
  if (!line.serve) {
    std::fputs(line.text.c_str(), line.exit_code == 0 ? stdout : stderr);
    return line.exit_code;
  }
  tcgemm::StartLogging(line.options.log_level, line.options.log_format);
  return tcgemm::RunServer(line.options, tcgemm::CreateDevice, read_again);
}
