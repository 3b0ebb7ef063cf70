// Certificates made in the test, and files to put them in.
#ifndef TCGEMM_TESTS_SECURITY_TEST_CERTIFICATES_H_
#define TCGEMM_TESTS_SECURITY_TEST_CERTIFICATES_H_

#include <cstdint>
#include <string>

namespace tcgemm {

struct TestPair {
  std::string cert;  // PEM
  std::string key;
};

// When a certificate is valid, in seconds since the epoch.
struct Validity {
  int64_t from = 0;
  int64_t until = 0;
};

// The present, in the tests.
inline constexpr int64_t kNow = 1'800'000'000;

// Signed by itself.
TestPair MakePair(const std::string& name, const Validity& validity);
// The key of `pair` under a password.
std::string Encrypt(const TestPair& pair);

// A folder that goes with it.
class TestFolder {
 public:
  TestFolder();
  ~TestFolder();
  std::string Write(const std::string& name, const std::string& text) const;
  std::string path(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

}  // namespace tcgemm

#endif  // TCGEMM_TESTS_SECURITY_TEST_CERTIFICATES_H_
