// What SIGHUP may change, and what it may not.
#ifndef TCGEMM_SERVER_MAIN_RELOAD_H_
#define TCGEMM_SERVER_MAIN_RELOAD_H_

#include <string>
#include <vector>

#include "server/main/options.h"

namespace tcgemm {

struct ReloadPlan {
  // The options from now on: the old ones, with what may change.
  ServerOptions options;
  std::vector<std::string> changed;        // flags, with old and new value
  std::vector<std::string> needs_restart;  // flags that are other now, and stay as they were
};

// `started`: what the process started with. A larger --max-batch than that needs a restart.
ReloadPlan PlanReload(const ServerOptions& started, const ServerOptions& now,
                      const ServerOptions& wanted);

}  // namespace tcgemm

#endif  // TCGEMM_SERVER_MAIN_RELOAD_H_
