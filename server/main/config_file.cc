#include "server/main/config_file.h"

#include <map>
#include <sstream>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "server/security/read_file.h"

namespace tcgemm {
namespace {

// A key in quotes: "max-batch" = 4. Not a string of a list.
bool IsQuotedKey(absl::string_view line) {
  const size_t end = line.find(line[0], 1);
  if (end == absl::string_view::npos) return false;
  const absl::string_view rest = absl::StripLeadingAsciiWhitespace(line.substr(end + 1));
  return !rest.empty() && rest[0] == '=';
}

[[noreturn]] void Refuse(int line, const std::string& why) {
  throw CLI::ConfigError(absl::StrCat("--config: line ", line, ": ", why));
}

// Checks the file line by line.
class Lines {
 public:
  explicit Lines(const ConfigKinds& kinds) : kinds_(kinds) {}

  void Check(const std::string& text) {
    for (const absl::string_view raw : absl::StrSplit(text, '\n')) {
      ++number_;
      // No value holds a '#'.
      const absl::string_view line = absl::StripAsciiWhitespace(raw.substr(0, raw.find('#')));
      if (line.empty() || line[0] == ';') continue;
      if (list_begin_ == 0) {
        CheckKey(line);
      } else if (line.back() == ']') {
        list_begin_ = 0;
      }
    }
    if (list_begin_ != 0) Refuse(list_begin_, "the list that begins here does not end");
  }

  int LineOf(const std::string& key) const { return lines_of_keys_.at(key); }

 private:
  void CheckKey(absl::string_view line) {
    const bool quoted = line[0] == '"' || line[0] == '\'';
    if (line[0] == '[' || (quoted && IsQuotedKey(line))) {
      Refuse(number_, "there are no sections here, and keys have no quotes");
    }
    const size_t equals = line.find('=');
    if (equals == absl::string_view::npos) {
      Refuse(number_, absl::StrCat("'", line.substr(0, kShown), "' must be KEY = VALUE"));
    }
    absl::string_view name = absl::StripAsciiWhitespace(line.substr(0, equals));
    while (!name.empty() && name[0] == '-') name.remove_prefix(1);
    const std::string key(name);
    const auto [first, is_new] = lines_of_keys_.emplace(key, number_);
    if (!is_new) {
      throw CLI::ConfigError(absl::StrCat("--config: '", key, "' is set twice, in lines ",
                                          first->second, " and ", number_));
    }
    CheckValue(key, absl::StripAsciiWhitespace(line.substr(equals + 1)));
  }

  void CheckValue(const std::string& key, absl::string_view value) {
    const bool is_list = !value.empty() && value[0] == '[';
    if (is_list && kinds_.lists.count(key) == 0) {
      Refuse(number_, absl::StrCat("'", key, "' is ", value.substr(0, kShown),
                                   ", must be one value: it takes no list"));
    }
    if (is_list && value.back() != ']') list_begin_ = number_;
    const bool is_empty = value.empty() || value == "\"\"" || value == "''";
    if (is_empty && kinds_.booleans.count(key) > 0) {
      Refuse(number_, absl::StrCat("'", key, "' is empty, must be true or false"));
    }
  }

  static constexpr size_t kShown = 80;
  const ConfigKinds& kinds_;
  int number_ = 0;
  int list_begin_ = 0;  // of a list that has not ended; 0: none
  std::map<std::string, int> lines_of_keys_;
};

}  // namespace

std::vector<CLI::ConfigItem> ConfigFile::from_config(std::istream& input) const {
  std::string text(kMaxSmallFileBytes + 1, '\0');
  input.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(input.gcount()));
  if (text.size() > kMaxSmallFileBytes) {
    throw CLI::ConfigError(
        absl::StrCat("--config: the file has more than ", kMaxSmallFileBytes, " bytes"));
  }
  Lines lines(kinds_);
  lines.Check(text);
  std::istringstream again(text);
  std::vector<CLI::ConfigItem> items = CLI::ConfigTOML::from_config(again);
  for (const CLI::ConfigItem& item : items) {
    // CLI11 makes a list of 4, 8 and of 4 8 too.
    if (item.inputs.size() > 1 && kinds_.lists.count(item.name) == 0) {
      Refuse(lines.LineOf(item.name),
             absl::StrCat("'", item.name, "' is ", absl::StrJoin(item.inputs, ", "),
                          ", must be one value"));
    }
  }
  *keys_ = items.size();
  return items;
}

}  // namespace tcgemm
