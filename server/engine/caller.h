// Who asked. Travels with every job, from admission to the last log line.
#ifndef TCGEMM_SERVER_ENGINE_CALLER_H_
#define TCGEMM_SERVER_ENGINE_CALLER_H_

#include <string>

namespace tcgemm {

struct Caller {
  // "anonymous" (TCP without credentials) or "uid:N" (the peer of a unix socket, by SO_PEERCRED at
  // accept). Never a secret; safe to log.
  std::string identity = "anonymous";

  bool operator==(const Caller&) const = default;
};

}  // namespace tcgemm

#endif  // TCGEMM_SERVER_ENGINE_CALLER_H_
