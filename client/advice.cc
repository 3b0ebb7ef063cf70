#include "client/advice.h"

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "client/duration.h"

namespace tcgemm::client {
namespace {

// gRPC's words for a connection that it could not make.
bool IsConnectFailure(absl::string_view message) {
  return absl::StrContains(message, "failed to connect") ||
         absl::StrContains(message, "Failed to connect") ||
         absl::StrContains(message, "DNS resolution failed") ||
         absl::StrContains(message, "onnection refused");
}

// What a failed handshake says; empty when it is none. The words are OpenSSL's and gRPC's.
std::string AdviseHandshake(absl::string_view message, const AdviceContext& context) {
  const std::string said = absl::AsciiStrToLower(message);
  if (absl::StrContains(said, "certificate verify failed") ||
      absl::StrContains(said, "certificate_verify_failed")) {
    return absl::StrCat("the certificate of ", context.server,
                        " is not of an authority in --tls-ca, or not valid now: give the CA that "
                        "issued it");
  }
  if (absl::StrContains(said, "not in peer certificate")) {
    return absl::StrCat("the certificate of ", context.server,
                        " is for another name: use that in --server, or name it with "
                        "--tls-server-name");
  }
  if (absl::StrContains(said, "wrong version number") ||
      absl::StrContains(said, "wrong_version_number")) {
    return absl::StrCat("the server at ", context.server, " speaks no TLS: leave --tls-ca out");
  }
  // A server with TLS closes a plain connection, and one that wants a certificate one without.
  if (IsConnectFailure(message) &&
      (absl::StrContains(said, "socket closed") || absl::StrContains(said, "connection reset"))) {
    return absl::StrCat("the server at ", context.server,
                        " is there but closes the connection: if it uses TLS give --tls-ca, if it "
                        "wants a client's certificate --tls-cert and --tls-key");
  }
  return "";
}

std::string AdviseUnavailable(absl::string_view message, const AdviceContext& context) {
  if (std::string advice = AdviseHandshake(message, context); !advice.empty()) return advice;
  if (IsConnectFailure(message)) {
    return absl::StrCat("cannot reach ", context.server,
                        ": is tcgemm-server running there? Choose the address with --server or "
                        "TCGEMM_SERVER");
  }
  return absl::StrCat("the server at ", context.server,
                      " is there but takes no work now (starting, draining, or the connection "
                      "broke): try again, or another one with --server or TCGEMM_SERVER");
}

std::string AdviseExhausted(const absl::Status& status, const AdviceContext& context) {
  if (absl::StrContains(status.message(), "--shared-memory-")) {
    return absl::StrCat("the server at ", context.server,
                        " shares no more memory: use less at once, close other regions, or restart "
                        "it with a larger --shared-memory-bytes");
  }
  if (absl::StrContains(status.message(), "-per-caller)")) {
    return absl::StrCat("the server at ", context.server,
                        " keeps this caller to a limit: send less at once, or ask its operator");
  }
  if (absl::StrContains(status.message(), "(--resident-bytes)")) {
    return absl::StrCat("what this call keeps on the server at ", context.server,
                        " does not fit there: delete what is not needed (`tcgemm-client list`), or "
                        "restart it with a larger --resident-bytes");
  }
  if (!IsRefusedSize(status)) {
    return absl::StrCat("the server at ", context.server,
                        " is full: try again later, send less at once, or wait longer with "
                        "--timeout");
  }
  const std::string limit =
      context.max_message_bytes > 0
          ? absl::StrCat(" (its limit is ", context.max_message_bytes, " bytes)")
          : "";
  return absl::StrCat("the request is larger than the server at ", context.server, " takes", limit,
                      ": stream it (`matmul --stream`, `bench --path stream`), or restart the "
                      "server with larger --max-message-bytes and --pinned-bytes");
}

std::string Advise(const absl::Status& status, const AdviceContext& context) {
  switch (status.code()) {
    case absl::StatusCode::kUnavailable:
      return AdviseUnavailable(status.message(), context);
    case absl::StatusCode::kResourceExhausted:
      return AdviseExhausted(status, context);
    case absl::StatusCode::kDeadlineExceeded:
      return absl::StrCat("no answer from ", context.server, " within ",
                          FormatDuration(context.timeout),
                          ": give it longer with --timeout, or check with `tcgemm-client health` "
                          "that it is reachable and not overloaded");
    case absl::StatusCode::kUnimplemented:
      if (absl::StrContains(status.message(), "--allow-shared-memory")) {
        return absl::StrCat("the server at ", context.server,
                            " shares no memory: restart it with --allow-shared-memory, or do "
                            "without --shared-memory");
      }
      return absl::StrCat("the server at ", context.server,
                          " does not offer this: is it a tcgemm-server, of this client's release? "
                          "`tcgemm-client info` tells its version");
    case absl::StatusCode::kUnauthenticated:
      return absl::StrCat("the server at ", context.server,
                          " does not know this caller: give the right token with --token-file or "
                          "TCGEMM_TOKEN");
    case absl::StatusCode::kPermissionDenied:
      return absl::StrCat("the server at ", context.server,
                          " does not let this user do it: ask its operator");
    case absl::StatusCode::kDataLoss:
      return absl::StrCat("what came back from ", context.server,
                          " is not right: do not use it; compare the releases of client and server "
                          "(`tcgemm-client info`) and report it");
    case absl::StatusCode::kInternal:
    case absl::StatusCode::kUnknown:
      return absl::StrCat("a fault in the server at ", context.server,
                          ": its log tells more; please report it");
    case absl::StatusCode::kCancelled:
      return "the call was cancelled";
    default:
      return "";  // the message names the wrong argument itself
  }
}

}  // namespace

bool IsRefusedSize(const absl::Status& status) {
  if (status.code() != absl::StatusCode::kResourceExhausted) return false;
  // The first are gRPC's words, the others tcgemm-server's ("… has 9 bytes, limit 8
  // (--max-message-bytes); MatmulStream takes …"); a full receive queue names the flag too, but
  // after "--queue-bytes /".
  const absl::string_view message = status.message();
  return absl::StrContains(message, "larger than max") ||
         absl::StrContains(message, "(--max-message-bytes)") ||
         absl::StrContains(message, "MatmulStream");
}

std::string CodeName(const absl::Status& status) { return absl::StatusCodeToString(status.code()); }

std::string Explain(const absl::Status& status, const AdviceContext& context) {
  const std::string advice = Advise(status, context);
  // One line, whatever the server put into its message.
  const std::string message = absl::StrReplaceAll(status.message(), {{"\n", " "}, {"\r", " "}});
  const std::string said = message.empty() ? "" : absl::StrCat(" [", message, "]");
  if (advice.empty()) return absl::StrCat(CodeName(status), ": ", message);
  return absl::StrCat(CodeName(status), ": ", advice, said);
}

}  // namespace tcgemm::client
