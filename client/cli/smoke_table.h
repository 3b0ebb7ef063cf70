// The smoke report for people and for programs.
#ifndef TCGEMM_CLIENT_CLI_SMOKE_TABLE_H_
#define TCGEMM_CLIENT_CLI_SMOKE_TABLE_H_

#include <string>

#include "client/cli/smoke.h"

namespace tcgemm::client {

// Lines, each with its newline; columns are as wide as the widest that SmokeShapes() needs.
std::string SmokeTableHeader();
std::string SmokeTableRow(const SmokeRow& row);
// "72 products on cpu at 127.0.0.1:50051: all right" or what was not.
std::string SmokeSummary(const SmokeReport& report);

// {server, device, ok, rows: [{m, n, k, layout, output, max_error_ratio, ms, tflops, ok}]} on one
// line. Where something failed, `error` says what (in a row, or in the report when there were no
// rows to run), and numbers that do not exist are null.
std::string SmokeJson(const SmokeReport& report);

}  // namespace tcgemm::client

#endif  // TCGEMM_CLIENT_CLI_SMOKE_TABLE_H_
