// Early return on a non-OK absl::Status. (Abseil 20220623 ships no such macros.)
#ifndef TCGEMM_BASE_STATUS_MACROS_H_
#define TCGEMM_BASE_STATUS_MACROS_H_

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#define TCGEMM_STATUS_CONCAT_INNER_(x, y) x##y
#define TCGEMM_STATUS_CONCAT_(x, y) TCGEMM_STATUS_CONCAT_INNER_(x, y)

// Returns from the enclosing function if `expr` (an absl::Status) is not OK.
#define TCGEMM_RETURN_IF_ERROR(expr)                 \
  do {                                               \
    absl::Status tcgemm_status_ = (expr);            \
    if (!tcgemm_status_.ok()) return tcgemm_status_; \
  } while (false)

// TCGEMM_ASSIGN_OR_RETURN(auto x, F()): x is the value of F(), or the function returns its status.
#define TCGEMM_ASSIGN_OR_RETURN(lhs, expr) \
  TCGEMM_ASSIGN_OR_RETURN_IMPL_(TCGEMM_STATUS_CONCAT_(tcgemm_statusor_, __LINE__), lhs, expr)
#define TCGEMM_ASSIGN_OR_RETURN_IMPL_(statusor, lhs, expr) \
  auto statusor = (expr);                                  \
  if (!statusor.ok()) return statusor.status();            \
  lhs = std::move(statusor).value()

#endif  // TCGEMM_BASE_STATUS_MACROS_H_
