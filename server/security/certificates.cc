#include "server/security/certificates.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <ctime>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "server/security/read_file.h"

namespace tcgemm {
namespace {

template <auto Free>
struct Deleter {
  template <typename T>
  void operator()(T* object) const {
    Free(object);
  }
};
using Bio = std::unique_ptr<BIO, Deleter<BIO_free>>;
using Certificate = std::unique_ptr<X509, Deleter<X509_free>>;
using Key = std::unique_ptr<EVP_PKEY, Deleter<EVP_PKEY_free>>;

absl::Status Wrong(const NamedFile& file, const std::string& what) {
  ERR_clear_error();
  return absl::InvalidArgumentError(absl::StrCat(file.flag, " ", file.path, ": ", what));
}

Bio Open(const std::string& text) {
  return Bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

// At least one.
absl::StatusOr<std::vector<Certificate>> ParseCertificates(const NamedFile& file,
                                                           const std::string& text) {
  const Bio bio = Open(text);
  std::vector<Certificate> found;
  while (Certificate next{PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr)}) {
    found.push_back(std::move(next));
  }
  // The end is "no start line" too; anything else is a certificate that does not parse.
  const bool ended = ERR_GET_REASON(ERR_peek_last_error()) == PEM_R_NO_START_LINE;
  ERR_clear_error();
  if (!ended) return Wrong(file, "a certificate in it does not parse as PEM");
  if (found.empty()) return Wrong(file, "holds no PEM certificate");
  return found;
}

// A password would be asked for on the terminal.
int NoPassword(char*, int, int, void*) { return -1; }

absl::StatusOr<Key> ParseKey(const NamedFile& file, const std::string& text) {
  Key key(PEM_read_bio_PrivateKey(Open(text).get(), nullptr, NoPassword, nullptr));
  if (key == nullptr) return Wrong(file, "holds no PEM private key (of those without a password)");
  return key;
}

std::string DateOf(const ASN1_TIME* time) {
  std::tm parts{};
  if (ASN1_TIME_to_tm(time, &parts) != 1) return "an unknown date";
  char text[32];
  std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

}  // namespace

absl::StatusOr<TlsContents> ReadTlsFiles(const TlsFiles& files) {
  TlsContents contents;
  TCGEMM_ASSIGN_OR_RETURN(contents.cert, ReadSmallFile({"--tls-cert", files.cert}));
  TCGEMM_ASSIGN_OR_RETURN(contents.key, ReadSmallFile({"--tls-key", files.key}));
  if (files.client_ca.empty()) return contents;
  TCGEMM_ASSIGN_OR_RETURN(contents.client_ca, ReadSmallFile({"--tls-client-ca", files.client_ca}));
  return contents;
}

absl::StatusOr<int64_t> CheckTlsContents(const TlsFiles& files, const TlsContents& contents,
                                         int64_t now) {
  const NamedFile cert_file{"--tls-cert", files.cert};
  const NamedFile key_file{"--tls-key", files.key};
  TCGEMM_ASSIGN_OR_RETURN(const auto chain, ParseCertificates(cert_file, contents.cert));
  TCGEMM_ASSIGN_OR_RETURN(const Key key, ParseKey(key_file, contents.key));
  X509* const leaf = chain.front().get();
  if (X509_check_private_key(leaf, key.get()) != 1) {
    return Wrong(key_file, absl::StrCat("is not the key of the certificate in ", files.cert));
  }
  time_t when = now;
  if (X509_cmp_time(X509_get0_notBefore(leaf), &when) > 0) {
    return Wrong(cert_file, absl::StrCat("is valid only from ", DateOf(X509_get0_notBefore(leaf))));
  }
  if (X509_cmp_time(X509_get0_notAfter(leaf), &when) <= 0) {
    return Wrong(cert_file, absl::StrCat("has expired on ", DateOf(X509_get0_notAfter(leaf))));
  }
  if (!files.client_ca.empty()) {
    const NamedFile ca_file{"--tls-client-ca", files.client_ca};
    TCGEMM_RETURN_IF_ERROR(ParseCertificates(ca_file, contents.client_ca).status());
  }
  std::tm end{};
  if (ASN1_TIME_to_tm(X509_get0_notAfter(leaf), &end) != 1) {
    return Wrong(cert_file, "has an expiry date that does not parse");
  }
  return static_cast<int64_t>(timegm(&end));
}

}  // namespace tcgemm
