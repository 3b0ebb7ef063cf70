// Who asked. Travels with every job, from admission to the last log line.
#ifndef TCGEMM_SERVER_ENGINE_CALLER_H_
#define TCGEMM_SERVER_ENGINE_CALLER_H_

#include <string>

namespace tcgemm {

struct Caller {
  // "cert:NAME" (a client's certificate), "token:ID" (a bearer token), "uid:N" (the peer of a unix
  // socket, by SO_PEERCRED at accept) or "anonymous" (TCP without credentials): the first that
  // there is. Never a secret; safe to log.
  std::string identity = "anonymous";

  bool operator==(const Caller&) const = default;
};

}  // namespace tcgemm

#endif  // TCGEMM_SERVER_ENGINE_CALLER_H_
