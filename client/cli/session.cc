#include <algorithm>
#include <nlohmann/json.hpp>
#include <ostream>

#include "client/advice.h"
#include "client/cli/command.h"

namespace tcgemm::client {

absl::StatusOr<std::unique_ptr<Client>> Session::Connect() const {
  return terminal_.connect({.server = flags_.server});
}

void Session::Note(const std::string& message) const {
  terminal_.err << "tcgemm-client: " << message << std::endl;
}

ExitCode Session::Fail(ExitCode code, const std::string& message) const {
  Note(message);
  if (flags_.json) {
    const nlohmann::ordered_json json = {{"ok", false}, {"error", message}};
    constexpr auto kReplace = nlohmann::ordered_json::error_handler_t::replace;
    out() << json.dump(-1, ' ', false, kReplace) << "\n";
  }
  return code;
}

std::string Session::Explanation(Client& client, const absl::Status& status) const {
  AdviceContext context{.server = flags_.server, .timeout = flags_.timeout};
  if (IsRefusedSize(status)) {
    constexpr Nanos kPatience = std::chrono::seconds(2);
    const Nanos timeout = std::min<Nanos>(flags_.timeout, kPatience);
    const absl::StatusOr<ServerInfo> info = client.GetServerInfo({.timeout = timeout});
    if (info.ok()) context.max_message_bytes = info->max_message_bytes;
  }
  return Explain(status, context);
}

ExitCode Session::FailCall(Client& client, const absl::Status& status) const {
  return Fail(ExitCodeOf(status), Explanation(client, status));
}

void Session::ExplainCall(Client& client, const absl::Status& status) const {
  Note(Explanation(client, status));
}

}  // namespace tcgemm::client
