#include "server/security/tokens.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "server/security/read_file.h"

namespace tcgemm {
namespace {

constexpr size_t kMaxIdBytes = 64;
constexpr size_t kHashDigits = 64;

bool IsId(absl::string_view text) {
  return !text.empty() && text.size() <= kMaxIdBytes &&
         std::all_of(text.begin(), text.end(), [](char c) {
           return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '_' ||
                  c == '-' || c == '@';
         });
}

bool IsHash(absl::string_view text) {
  return text.size() == kHashDigits && std::all_of(text.begin(), text.end(), [](char c) {
           return absl::ascii_isxdigit(static_cast<unsigned char>(c));
         });
}

}  // namespace

TokenHash HashToken(std::string_view token) {
  TokenHash hash;
  SHA256(reinterpret_cast<const unsigned char*>(token.data()), token.size(), hash.data());
  return hash;
}

absl::StatusOr<TokenTable> TokenTable::Parse(std::string_view text) {
  TokenTable table;
  int number = 0;
  for (absl::string_view line : absl::StrSplit(absl::string_view(text.data(), text.size()), '\n')) {
    ++number;
    line = absl::StripAsciiWhitespace(line);
    if (line.empty() || line.front() == '#') continue;
    const size_t colon = line.rfind(':');
    const bool fits = colon != absl::string_view::npos && IsId(line.substr(0, colon)) &&
                      IsHash(line.substr(colon + 1));
    if (!fits) {
      return absl::InvalidArgumentError(
          absl::StrCat("line ", number, " must be ID:SHA256, an ID of 1 to ", kMaxIdBytes,
                       " letters, digits and ._-@ and 64 hex digits"));
    }
    // What hashing an unset variable gives.
    static const TokenHash kOfNothing = HashToken("");
    Entry entry{.id = std::string(line.substr(0, colon))};
    const std::string bytes = absl::HexStringToBytes(line.substr(colon + 1));
    std::copy(bytes.begin(), bytes.end(), entry.hash.begin());
    if (entry.hash == kOfNothing) {
      return absl::InvalidArgumentError(absl::StrCat("line ", number, " is the hash of no token"));
    }
    for (const Entry& other : table.entries_) {
      if (other.hash != entry.hash) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("line ", number, " repeats the token of an earlier line"));
    }
    table.entries_.push_back(std::move(entry));
  }
  if (table.entries_.empty())
    return absl::InvalidArgumentError("holds no token: nobody could call");
  return table;
}

std::optional<std::string> TokenTable::Find(std::string_view token) const {
  if (token.empty()) return std::nullopt;
  const TokenHash hash = HashToken(token);
  const Entry* found = nullptr;
  // All of them, whichever fits.
  for (const Entry& entry : entries_) {
    if (CRYPTO_memcmp(entry.hash.data(), hash.data(), hash.size()) == 0) found = &entry;
  }
  if (found == nullptr) return std::nullopt;
  return found->id;
}

absl::StatusOr<std::unique_ptr<TokenFile>> TokenFile::Open(const std::string& path, LogLine log) {
  std::unique_ptr<TokenFile> file(new TokenFile(path, std::move(log)));
  TCGEMM_ASSIGN_OR_RETURN(TokenTable table, file->Read());
  MutexLock lock(&file->mutex_);
  file->table_ = std::make_shared<const TokenTable>(std::move(table));
  return file;
}

TokenFile::TokenFile(std::string path, LogLine log)
    : path_(std::move(path)), log_(std::move(log)) {}

std::shared_ptr<const TokenTable> TokenFile::table() const {
  MutexLock lock(&mutex_);
  return table_;
}

absl::StatusOr<TokenTable> TokenFile::Read() const {
  TCGEMM_ASSIGN_OR_RETURN(const std::string text, ReadSmallFile({"--token-file", path_}));
  absl::StatusOr<TokenTable> table = TokenTable::Parse(text);
  if (table.ok()) return table;
  return absl::InvalidArgumentError(
      absl::StrCat("--token-file ", path_, ": ", std::string(table.status().message())));
}

absl::StatusOr<bool> TokenFile::Reload() {
  absl::StatusOr<TokenTable> read = Read();
  MutexLock lock(&mutex_);
  if (!read.ok()) {
    if (refused_ != read.status()) {
      log_(true, absl::StrCat("the new token file is refused, the old tokens go on: ",
                              std::string(read.status().message())));
    }
    refused_ = read.status();
    return refused_;
  }
  refused_ = absl::OkStatus();
  if (*read == *table_) return false;
  log_(false, absl::StrCat("--token-file ", path_, ": ", read->size(), " tokens from now on"));
  table_ = std::make_shared<const TokenTable>(*std::move(read));
  return true;
}

}  // namespace tcgemm
