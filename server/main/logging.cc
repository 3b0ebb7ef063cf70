#include "server/main/logging.h"

#include <grpc/support/log.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <atomic>
#include <memory>
#include <nlohmann/json.hpp>

namespace tcgemm {
namespace {

std::atomic<bool> as_json{false};

spdlog::level::level_enum ToSpdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
  }
  return spdlog::level::info;
}

void LogFromGrpc(gpr_log_func_args* args) {
  const LogLevel level =
      args->severity == GPR_LOG_SEVERITY_ERROR ? LogLevel::kWarning : LogLevel::kDebug;
  Log(level, std::string("grpc: ") + args->message);
}

}  // namespace

void StartLogging(const std::string& level, const std::string& format) {
  as_json.store(format == "json");
  auto logger =
      std::make_shared<spdlog::logger>("tcgemm", std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger->set_level(spdlog::level::from_str(level));
  logger->flush_on(spdlog::level::trace);
  logger->set_pattern(as_json.load()
                          ? R"({"time":"%Y-%m-%dT%H:%M:%S.%e%z","level":"%l","message":%v})"
                          : "%Y-%m-%dT%H:%M:%S.%e %l %v");
  spdlog::set_default_logger(std::move(logger));
  gpr_set_log_function(LogFromGrpc);
}

void SetLogLevel(const std::string& level) {
  spdlog::default_logger_raw()->set_level(spdlog::level::from_str(level));
}

void Log(LogLevel level, const std::string& message) {
  if (!as_json.load()) {
    spdlog::default_logger_raw()->log(ToSpdlog(level), "{}", message);
    return;
  }
  // dump() quotes and escapes; bytes that are no UTF-8 are replaced, never thrown at.
  const std::string quoted =
      nlohmann::json(message).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  spdlog::default_logger_raw()->log(ToSpdlog(level), "{}", quoted);
}

}  // namespace tcgemm
