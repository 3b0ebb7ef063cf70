// The engine's options, of the server's.
#ifndef TCGEMM_SERVER_MAIN_ENGINE_OPTIONS_H_
#define TCGEMM_SERVER_MAIN_ENGINE_OPTIONS_H_

#include "server/engine/engine.h"
#include "server/main/options.h"

namespace tcgemm {

// All that flags decide; without --device-bytes, each slot has room for what fits --pinned-bytes,
// at most 2 GiB.
EngineOptions EngineOptionsOf(const ServerOptions& options);

}  // namespace tcgemm

#endif  // TCGEMM_SERVER_MAIN_ENGINE_OPTIONS_H_
