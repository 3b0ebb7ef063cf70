#include <csignal>
#include <iostream>

#include "client/cli/command.h"

int main(int argc, char** argv) {
  // A reader that went away is an error to report, not a signal to die of.
  std::signal(SIGPIPE, SIG_IGN);
  const tcgemm::client::Terminal terminal{std::cout, std::cerr, &tcgemm::client::Client::Create};
  return tcgemm::client::RunCli(argc, argv, terminal);
}
