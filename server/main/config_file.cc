#include "server/main/config_file.h"

#include <sys/stat.h>

#include <iterator>
#include <map>
#include <sstream>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace tcgemm {
namespace {

void RefuseTwice(const std::string& text) {
  std::map<std::string, int> lines_of_keys;
  std::string section;
  int number = 0;
  for (const absl::string_view raw : absl::StrSplit(text, '\n')) {
    ++number;
    const absl::string_view line = absl::StripAsciiWhitespace(raw);
    // Not comments, nor the further lines of a list, which start with a quote or a bracket.
    if (line.empty() || absl::string_view("#;\"'],").find(line[0]) != absl::string_view::npos) {
      continue;
    }
    if (line[0] == '[') {
      section = std::string(line);
      continue;
    }
    const size_t equals = line.find('=');
    if (equals == absl::string_view::npos) continue;
    const std::string key(absl::StripAsciiWhitespace(line.substr(0, equals)));
    const auto [first, is_new] = lines_of_keys.emplace(absl::StrCat(section, key), number);
    if (!is_new) {
      throw CLI::ConfigError(absl::StrCat("--config: '", key, "' is set twice, in lines ",
                                          first->second, " and ", number));
    }
  }
}

}  // namespace

std::vector<CLI::ConfigItem> ConfigFile::from_config(std::istream& input) const {
  const std::string text(std::istreambuf_iterator<char>(input), {});
  *bytes_ = text.size();
  RefuseTwice(text);
  std::istringstream again(text);
  return CLI::ConfigTOML::from_config(again);
}

std::string CheckRegularFile(const std::string& path) {
  struct stat about = {};
  if (stat(path.c_str(), &about) != 0 || S_ISREG(about.st_mode)) return "";
  return absl::StrCat(path, " is not a regular file");
}

}  // namespace tcgemm
