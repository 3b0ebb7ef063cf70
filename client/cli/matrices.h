// The commands of tcgemm-client that deal with resident matrices.
#ifndef TCGEMM_CLIENT_CLI_MATRICES_H_
#define TCGEMM_CLIENT_CLI_MATRICES_H_

#include <string>

#include "base/clock.h"
#include "client/cli/commands.h"
#include "client/cli/exit_code.h"

namespace tcgemm::client {

struct UploadCommand {
  std::string file;
  std::string name;
  Nanos ttl{0};
  bool resume = false;  // of `name`
  bool u2_is_bf16 = false;
  int lanes = 0;  // ClientOptions.lanes
};

struct DownloadCommand {
  std::string handle;
  std::string file;
  int lanes = 0;
};

ExitCode RunUpload(const GlobalOptions& global, const UploadCommand& command);
ExitCode RunDownload(const GlobalOptions& global, const DownloadCommand& command);
ExitCode RunList(const GlobalOptions& global);
ExitCode RunDelete(const GlobalOptions& global, const std::string& handle);

// `matmul` with a handle (@HANDLE) for A, B, C or bias, or with a D that stays.
bool UsesResidents(const MatmulOptions& options);
ExitCode RunResidentMatmul(const GlobalOptions& global, const MatmulOptions& options);

}  // namespace tcgemm::client

#endif  // TCGEMM_CLIENT_CLI_MATRICES_H_
