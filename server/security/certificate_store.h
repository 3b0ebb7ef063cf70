// The certificates that TLS listeners serve, kept up to date with their files.
//
// What is good is published for gRPC's file watcher, which serves it to new handshakes within a
// second; what is not changes nothing. docs/adr/0019-security.md says why it is done this way.
#ifndef TCGEMM_SERVER_SECURITY_CERTIFICATE_STORE_H_
#define TCGEMM_SERVER_SECURITY_CERTIFICATE_STORE_H_

#include <grpcpp/security/server_credentials.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "server/engine/engine_events.h"
#include "server/security/certificates.h"
#include "server/security/published_file.h"

namespace tcgemm {

struct CertificateOptions {
  TlsFiles files;
  // With a client_ca: a handshake without a client's certificate fails. Else one that is shown must
  // be right, and none may be shown.
  bool require_client = true;
  SecurityEvents* events = nullptr;  // required; outlives the store
  // One line for the log, from any thread. `refused`: new files are not served.
  std::function<void(bool refused, const std::string& line)> log;
  // Seconds since the epoch; for tests. Null: the system's.
  std::function<int64_t()> now;
};

// Thread-safe.
class CertificateStore {
 public:
  // Reads the files. CheckTlsContents' and ReadTlsFiles' errors.
  static absl::StatusOr<std::unique_ptr<CertificateStore>> Create(CertificateOptions options);
  CertificateStore(const CertificateStore&) = delete;
  CertificateStore& operator=(const CertificateStore&) = delete;

  // For listeners; handshakes use what is published. The store must outlive them.
  std::shared_ptr<grpc::ServerCredentials> Credentials() const;

  // Looks at the files now. True: they had changed, and are served. False: they are those served.
  // Otherwise the old ones go on being served, the events count a refusal and the log gets a line:
  // once for the same contents.
  absl::StatusOr<bool> Reload() ABSL_LOCKS_EXCLUDED(mutex_);
  // The same, but for files that are being replaced one after the other: what is wrong must be the
  // same at the next Poll to be refused.
  void Poll() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // What was read of the files, or why it could not be.
  struct Seen {
    TlsContents contents;
    absl::Status read;

    bool operator==(const Seen&) const = default;
  };

  explicit CertificateStore(CertificateOptions options);
  Seen Look() const;
  // True when published.
  absl::StatusOr<bool> Take(const Seen& seen) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Publish(const TlsContents& contents) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Refuse(const Seen& seen, const absl::Status& why)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const CertificateOptions options_;
  mutable Mutex mutex_;
  TlsContents served_ ABSL_GUARDED_BY(mutex_);
  std::optional<Seen> refused_ ABSL_GUARDED_BY(mutex_);   // the last one, told already
  std::optional<Seen> doubtful_ ABSL_GUARDED_BY(mutex_);  // wrong at the last Poll
  std::unique_ptr<PublishedFile> pair_;                   // certificate and key in one
  std::unique_ptr<PublishedFile> client_ca_;              // null without one
};

}  // namespace tcgemm

#endif  // TCGEMM_SERVER_SECURITY_CERTIFICATE_STORE_H_
