#include "server/main/config_file.h"

#include <sys/stat.h>

#include <map>
#include <sstream>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace tcgemm {
namespace {

constexpr size_t kMaxBytes = 1 << 20;

// A key in quotes: "max-batch" = 4. Not a string of a list.
bool IsQuotedKey(absl::string_view line) {
  const size_t end = line.find(line[0], 1);
  if (end == absl::string_view::npos) return false;
  const absl::string_view rest = absl::StripLeadingAsciiWhitespace(line.substr(end + 1));
  return !rest.empty() && rest[0] == '=';
}

// What CLI11 would read in a way that nobody sees: the last of two values, a section that changes
// nothing (or, nested ten thousand deep, takes all memory), a key that looks like a string.
void CheckLines(const std::string& text) {
  std::map<std::string, int> lines_of_keys;
  int number = 0;
  for (const absl::string_view raw : absl::StrSplit(text, '\n')) {
    ++number;
    const absl::string_view line = absl::StripAsciiWhitespace(raw);
    // Not comments, nor the end of a list.
    if (line.empty() || absl::string_view("#;],").find(line[0]) != absl::string_view::npos) {
      continue;
    }
    const bool quoted = line[0] == '"' || line[0] == '\'';
    if (line[0] == '[' || (quoted && IsQuotedKey(line))) {
      throw CLI::ConfigError(absl::StrCat("--config: line ", number,
                                          ": there are no sections here, and keys have no quotes"));
    }
    const size_t equals = line.find('=');
    if (quoted || equals == absl::string_view::npos) continue;
    absl::string_view name = absl::StripAsciiWhitespace(line.substr(0, equals));
    while (!name.empty() && name[0] == '-') name.remove_prefix(1);
    const std::string key(name);
    const auto [first, is_new] = lines_of_keys.emplace(key, number);
    if (!is_new) {
      throw CLI::ConfigError(absl::StrCat("--config: '", key, "' is set twice, in lines ",
                                          first->second, " and ", number));
    }
  }
}

}  // namespace

std::vector<CLI::ConfigItem> ConfigFile::from_config(std::istream& input) const {
  std::string text(kMaxBytes + 1, '\0');
  input.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(input.gcount()));
  if (text.size() > kMaxBytes) {
    throw CLI::ConfigError(absl::StrCat("--config: the file has more than ", kMaxBytes, " bytes"));
  }
  CheckLines(text);
  std::istringstream again(text);
  std::vector<CLI::ConfigItem> items = CLI::ConfigTOML::from_config(again);
  *keys_ = items.size();
  return items;
}

std::string CheckRegularFile(const std::string& path) {
  struct stat about = {};
  if (stat(path.c_str(), &about) != 0 || S_ISREG(about.st_mode)) return "";
  return absl::StrCat(path, " is not a regular file");
}

}  // namespace tcgemm
