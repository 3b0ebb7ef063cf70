// The process's log: one line an event on stderr, as text or as JSON.
#ifndef TCGEMM_SERVER_MAIN_LOGGING_H_
#define TCGEMM_SERVER_MAIN_LOGGING_H_

#include <string>

namespace tcgemm {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

// `level` and `format` as in ServerOptions. Call once, before any Log. Routes gRPC's own messages
// here as well (its errors as warnings, the rest as debug).
void StartLogging(const std::string& level, const std::string& format);

// From now on; thread-safe. `level` as above.
void SetLogLevel(const std::string& level);

// Thread-safe. Text: "2026-01-31T12:00:00.123 error message"; JSON: {"time", "level", "message"}.
void Log(LogLevel level, const std::string& message);

}  // namespace tcgemm

#endif  // TCGEMM_SERVER_MAIN_LOGGING_H_
