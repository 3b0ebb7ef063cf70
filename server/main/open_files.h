// How many files, and so connections, the process may have open.
#ifndef TCGEMM_SERVER_MAIN_OPEN_FILES_H_
#define TCGEMM_SERVER_MAIN_OPEN_FILES_H_

#include <cstdint>

namespace tcgemm {

// Raises the soft limit (often 1024, kept low for programs that use select) to the hard one.
// Connections are refused at once when it is near (server/rpc/accept_loop.h). Returns the limit in
// force; what cannot be raised stays as it is.
uint64_t RaiseOpenFileLimit();

}  // namespace tcgemm

#endif  // TCGEMM_SERVER_MAIN_OPEN_FILES_H_
