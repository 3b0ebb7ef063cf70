#include "server/security/certificate_store.h"

#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_credentials_options.h>

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tcgemm {
namespace {

constexpr unsigned kGrpcRefreshSeconds = 1;

int64_t SystemSeconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

// One file for both, so that they are replaced together. PEM readers skip what is not theirs.
std::string Pair(const TlsContents& contents) {
  return absl::StrCat(contents.key, "\n", contents.cert);
}

}  // namespace

absl::StatusOr<std::unique_ptr<CertificateStore>> CertificateStore::Create(
    CertificateOptions options) {
  if (!options.now) options.now = SystemSeconds;
  std::unique_ptr<CertificateStore> store(new CertificateStore(std::move(options)));
  const CertificateOptions& chosen = store->options_;
  TCGEMM_ASSIGN_OR_RETURN(const TlsContents contents, ReadTlsFiles(chosen.files));
  TCGEMM_ASSIGN_OR_RETURN(const int64_t expires,
                          CheckTlsContents(chosen.files, contents, chosen.now()));
  TCGEMM_ASSIGN_OR_RETURN(store->pair_, PublishedFile::Create(Pair(contents)));
  if (!chosen.files.client_ca.empty()) {
    TCGEMM_ASSIGN_OR_RETURN(store->client_ca_, PublishedFile::Create(contents.client_ca));
  }
  {
    MutexLock lock(&store->mutex_);
    store->served_ = contents;
  }
  chosen.events->OnCertificate(expires);
  return store;
}

CertificateStore::CertificateStore(CertificateOptions options) : options_(std::move(options)) {}

std::shared_ptr<grpc::ServerCredentials> CertificateStore::Credentials() const {
  namespace tls = grpc::experimental;
  const auto provider = std::make_shared<tls::FileWatcherCertificateProvider>(
      pair_->path(), pair_->path(), client_ca_ == nullptr ? "" : client_ca_->path(),
      kGrpcRefreshSeconds);
  tls::TlsServerCredentialsOptions options(provider);
  options.watch_identity_key_cert_pairs();
  if (client_ca_ != nullptr) {
    options.watch_root_certs();
    options.set_cert_request_type(options_.require_client
                                      ? GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY
                                      : GRPC_SSL_REQUEST_CLIENT_CERTIFICATE_AND_VERIFY);
  }
  return tls::TlsServerCredentials(options);
}

CertificateStore::Seen CertificateStore::Look() const {
  absl::StatusOr<TlsContents> contents = ReadTlsFiles(options_.files);
  if (!contents.ok()) return {.read = contents.status()};
  return {.contents = *std::move(contents)};
}

absl::StatusOr<bool> CertificateStore::Reload() {
  const Seen seen = Look();
  MutexLock lock(&mutex_);
  return Take(seen);
}

void CertificateStore::Poll() {
  const Seen seen = Look();
  MutexLock lock(&mutex_);
  const bool good =
      seen.read.ok() && CheckTlsContents(options_.files, seen.contents, options_.now()).ok();
  // Certificates that are served and have expired meanwhile are no news.
  const bool same = seen.read.ok() && seen.contents == served_;
  if (!good && !same && doubtful_ != seen) {
    doubtful_ = seen;
    return;
  }
  doubtful_.reset();
  Take(seen).IgnoreError();  // it has been told
}

absl::StatusOr<bool> CertificateStore::Take(const Seen& seen) {
  if (!seen.read.ok()) return Refuse(seen, seen.read);
  if (seen.contents == served_) {
    refused_.reset();
    return false;
  }
  const absl::StatusOr<int64_t> expires =
      CheckTlsContents(options_.files, seen.contents, options_.now());
  if (!expires.ok()) return Refuse(seen, expires.status());
  if (const absl::Status done = Publish(seen.contents); !done.ok()) return Refuse(seen, done);
  refused_.reset();
  options_.events->OnCertificate(*expires);
  options_.events->OnCertificateReload(/*ok=*/true);
  options_.log(false, absl::StrCat("new certificates from ", options_.files.cert, " are served"));
  return true;
}

absl::Status CertificateStore::Publish(const TlsContents& contents) {
  if (client_ca_ != nullptr) TCGEMM_RETURN_IF_ERROR(client_ca_->Replace(contents.client_ca));
  TCGEMM_RETURN_IF_ERROR(pair_->Replace(Pair(contents)));
  served_ = contents;
  return absl::OkStatus();
}

absl::Status CertificateStore::Refuse(const Seen& seen, const absl::Status& why) {
  if (refused_ == seen) return why;
  refused_ = seen;
  options_.events->OnCertificateReload(/*ok=*/false);
  options_.log(true, absl::StrCat("new certificates are refused, the old ones are served on: ",
                                  std::string(why.message())));
  return why;
}

}  // namespace tcgemm
