// The flags about who may call, and what they mean together.
#ifndef TCGEMM_SERVER_MAIN_OPTIONS_SECURITY_H_
#define TCGEMM_SERVER_MAIN_OPTIONS_SECURITY_H_

#include <string>
#include <vector>

#include "server/main/flag_table.h"
#include "server/main/options.h"

namespace tcgemm {

void AddSecurityFlags(FlagTable& flags, ServerOptions& options);

// What is wrong with them, naming the flag and what to do; empty when all is well. Looks names of
// --listen up; reads no file.
std::string CheckSecurity(const ServerOptions& options);

// --listen addresses that other machines may reach.
std::vector<std::string> RemoteAddresses(const ServerOptions& options);

// Whether the server describes itself to whoever asks: --reflection, which by itself follows
// whether other machines may.
bool ServesReflection(const ServerOptions& options);

// Whether /debug/requests may be read: --debug-pages, which by itself follows whether other
// machines may reach --metrics-listen. Looks its name up.
bool ServesDebugPages(const ServerOptions& options);

// Whether --print-config can print it so that it reads back.
bool FitsToml(const std::string& text);

}  // namespace tcgemm

#endif  // TCGEMM_SERVER_MAIN_OPTIONS_SECURITY_H_
