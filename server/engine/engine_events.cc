#include "server/engine/engine_events.h"

namespace tcgemm {

std::string_view StageName(Stage stage) {
  switch (stage) {
    case Stage::kReceive:
      return "receive";
    case Stage::kDecode:
      return "decode";
    case Stage::kQueue:
      return "queue";
    case Stage::kCopyIn:
      return "copy_in";
    case Stage::kKernel:
      return "kernel";
    case Stage::kVerify:
      return "verify";
    case Stage::kCopyOut:
      return "copy_out";
    case Stage::kSend:
      return "send";
  }
  return "?";
}

std::string_view RejectReasonName(RejectReason reason) {
  switch (reason) {
    case RejectReason::kDraining:
      return "draining";
    case RejectReason::kNotReady:
      return "not_ready";
    case RejectReason::kInflight:
      return "inflight";
    case RejectReason::kQueue:
      return "queue";
    case RejectReason::kMemory:
      return "memory";
    case RejectReason::kMessage:
      return "message";
    case RejectReason::kDeadline:
      return "deadline";
    case RejectReason::kCredentials:
      return "credentials";
    case RejectReason::kCaller:
      return "caller";
  }
  return "?";
}

std::string_view DeviceErrorKindName(DeviceErrorKind kind) {
  switch (kind) {
    case DeviceErrorKind::kLaunch:
      return "launch";
    case DeviceErrorKind::kCopy:
      return "copy";
    case DeviceErrorKind::kEvent:
      return "event";
    case DeviceErrorKind::kSelfTest:
      return "self_test";
    case DeviceErrorKind::kWatchdog:
      return "watchdog";
  }
  return "?";
}

}  // namespace tcgemm
