// Bearer tokens, known by their SHA-256 alone.
#ifndef TCGEMM_SERVER_SECURITY_TOKENS_H_
#define TCGEMM_SERVER_SECURITY_TOKENS_H_

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"

namespace tcgemm {

using TokenHash = std::array<unsigned char, 32>;
TokenHash HashToken(std::string_view token);

// Who has which token. Thread-safe; never changes.
class TokenTable {
 public:
  // Lines "ID:SHA256", with 64 hex digits; blanks around them, empty lines and those that begin
  // with '#' do not count. An ID (1 to 64 letters, digits and ._-@) may have several tokens.
  // INVALID_ARGUMENT, naming the line's number and never what is in it, for any other, for a hash
  // that comes twice, and without a token.
  static absl::StatusOr<TokenTable> Parse(std::string_view text);

  // Whose token it is. Takes as long for a wrong one as for a right one.
  std::optional<std::string> Find(std::string_view token) const;
  size_t size() const { return entries_.size(); }
  bool operator==(const TokenTable&) const = default;

 private:
  struct Entry {
    std::string id;
    TokenHash hash;
    bool operator==(const Entry&) const = default;
  };
  std::vector<Entry> entries_;
};

// The table of a file, kept up to date with it. Thread-safe.
class TokenFile {
 public:
  // One line for the log, from any thread. `refused`: the new file is not used.
  using LogLine = std::function<void(bool refused, const std::string& line)>;

  // NOT_FOUND, PERMISSION_DENIED or INVALID_ARGUMENT, naming --token-file and the path.
  static absl::StatusOr<std::unique_ptr<TokenFile>> Open(const std::string& path, LogLine log);

  std::shared_ptr<const TokenTable> table() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Looks at the file now. True: it had changed, and is used. Otherwise the old table stays, and
  // the log gets a line, once for the same reason.
  absl::StatusOr<bool> Reload() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  TokenFile(std::string path, LogLine log);
  absl::StatusOr<TokenTable> Read() const;

  const std::string path_;
  const LogLine log_;
  mutable Mutex mutex_;
  std::shared_ptr<const TokenTable> table_ ABSL_GUARDED_BY(mutex_);
  absl::Status refused_ ABSL_GUARDED_BY(mutex_);  // the last reason, told already
};

}  // namespace tcgemm

#endif  // TCGEMM_SERVER_SECURITY_TOKENS_H_
