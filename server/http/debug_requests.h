// What /debug/requests tells of the last slow and failed calls.
#ifndef TCGEMM_SERVER_HTTP_DEBUG_REQUESTS_H_
#define TCGEMM_SERVER_HTTP_DEBUG_REQUESTS_H_

#include <string>

#include "server/engine/notable_calls.h"

namespace tcgemm {

// Whether a request's Host header names this server by an IP address, as localhost or as `own`, or
// is missing. A page of somebody's own site whose name was bound to 127.0.0.1 meanwhile (DNS
// rebinding) asks for another name, and may not read who called.
bool IsOwnHost(const std::string& header, const std::string& own);

// Plain text for a person, newest calls first.
std::string DebugRequestsText(const NotableCalls& calls);

// The same as an object: {"slow_request_ms", "kept", "slow": {"count", "calls": [...]}, "failed":
// …}; a call has the fields of the access log, and "message". docs/OPERATIONS.md.
std::string DebugRequestsJson(const NotableCalls& calls);

}  // namespace tcgemm

#endif  // TCGEMM_SERVER_HTTP_DEBUG_REQUESTS_H_
