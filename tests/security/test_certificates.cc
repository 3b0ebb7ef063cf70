#include "tests/security/test_certificates.h"

#include <gtest/gtest.h>
#include <openssl/bio.h>
#include <openssl/ec.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace tcgemm {
namespace {

std::string TextOf(BIO* bio) {
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio, &data);
  std::string text(data, static_cast<size_t>(size));
  BIO_free(bio);
  return text;
}

}  // namespace

TestPair MakePair(const std::string& name, const Validity& validity) {
  EVP_PKEY* const key = EVP_EC_gen("P-256");
  X509* const cert = X509_new();
  X509_set_version(cert, 2);
  ASN1_INTEGER_set(X509_get_serialNumber(cert), 1);
  ASN1_TIME_set(X509_getm_notBefore(cert), validity.from);
  ASN1_TIME_set(X509_getm_notAfter(cert), validity.until);
  X509_set_pubkey(cert, key);
  X509_NAME* const subject = X509_get_subject_name(cert);
  X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0);
  X509_set_issuer_name(cert, subject);
  EXPECT_GT(X509_sign(cert, key, EVP_sha256()), 0);
  BIO* const cert_bio = BIO_new(BIO_s_mem());
  BIO* const key_bio = BIO_new(BIO_s_mem());
  PEM_write_bio_X509(cert_bio, cert);
  PEM_write_bio_PrivateKey(key_bio, key, nullptr, nullptr, 0, nullptr, nullptr);
  X509_free(cert);
  EVP_PKEY_free(key);
  return {.cert = TextOf(cert_bio), .key = TextOf(key_bio)};
}

std::string Encrypt(const TestPair& pair) {
  BIO* const in = BIO_new_mem_buf(pair.key.data(), static_cast<int>(pair.key.size()));
  EVP_PKEY* const key = PEM_read_bio_PrivateKey(in, nullptr, nullptr, nullptr);
  BIO* const out = BIO_new(BIO_s_mem());
  unsigned char password[] = "secret";
  PEM_write_bio_PrivateKey(out, key, EVP_aes_128_cbc(), password, 6, nullptr, nullptr);
  EVP_PKEY_free(key);
  BIO_free(in);
  return TextOf(out);
}

TestFolder::TestFolder() {
  std::string form = ::testing::TempDir() + "/tcgemm-security-XXXXXX";
  const char* const made = mkdtemp(form.data());
  EXPECT_NE(made, nullptr);
  path_ = form;
}

TestFolder::~TestFolder() { std::filesystem::remove_all(path_); }

std::string TestFolder::Write(const std::string& name, const std::string& text) const {
  std::ofstream(path(name), std::ios::binary) << text;
  return path(name);
}

}  // namespace tcgemm
