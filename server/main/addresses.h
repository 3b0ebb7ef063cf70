// The addresses that the options name, looked at before anything is started.
#ifndef TCGEMM_SERVER_MAIN_ADDRESSES_H_
#define TCGEMM_SERVER_MAIN_ADDRESSES_H_

#include <string>

#include "absl/status/status.h"
#include "server/main/options.h"

namespace tcgemm {

// What is wrong with the form of one of --listen or --metrics-listen, naming flag and address;
// empty when all is well. Looks no name up: a configuration may be checked on another machine.
std::string CheckAddresses(const ServerOptions& options);

// INVALID_ARGUMENT, naming flag and address, for a host without an address that can be listened on.
absl::Status ResolveAddresses(const ServerOptions& options);

}  // namespace tcgemm

#endif  // TCGEMM_SERVER_MAIN_ADDRESSES_H_
