// The server's certificate, its key, and the authorities of its clients: read, and checked before
// anything serves them. gRPC itself takes what does not fit together and then fails every
// handshake.
//
// Threads: functions without state.
#ifndef TCGEMM_SERVER_SECURITY_CERTIFICATES_H_
#define TCGEMM_SERVER_SECURITY_CERTIFICATES_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tcgemm {

// Paths of PEM files.
struct TlsFiles {
  std::string cert;       // --tls-cert: the server's certificate, then those that lead to its root
  std::string key;        // --tls-key: of the first of them, not encrypted
  std::string client_ca;  // --tls-client-ca: whose clients are known; empty: clients have none
};

// What the files hold, as PEM.
struct TlsContents {
  std::string cert;
  std::string key;
  std::string client_ca;

  bool operator==(const TlsContents&) const = default;
};

// NOT_FOUND, PERMISSION_DENIED or INVALID_ARGUMENT, naming the flag, the file and what is wrong,
// for a file that cannot be read or holds more than 1 MiB.
absl::StatusOr<TlsContents> ReadTlsFiles(const TlsFiles& files);

// When the server's certificate expires, in seconds since the epoch. INVALID_ARGUMENT, naming the
// flag and the file, when one does not parse, the key is another certificate's or encrypted, or the
// certificate is not valid at `now` (the same seconds). Expired authorities are not looked for:
// they make no handshake worse than a missing one.
absl::StatusOr<int64_t> CheckTlsContents(const TlsFiles& files, const TlsContents& contents,
                                         int64_t now);

}  // namespace tcgemm

#endif  // TCGEMM_SERVER_SECURITY_CERTIFICATES_H_
