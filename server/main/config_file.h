// How the file that --config names is read.
#ifndef TCGEMM_SERVER_MAIN_CONFIG_FILE_H_
#define TCGEMM_SERVER_MAIN_CONFIG_FILE_H_

#include <CLI/CLI.hpp>
#include <istream>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace tcgemm {

// Keys whose values are not like those of the others.
struct ConfigKinds {
  std::set<std::string> lists;     // may have several values
  std::set<std::string> booleans;  // CLI11 takes an empty value for true
};

// CLI11's TOML of at most 1 MiB, without what CLI11 would read in a way that nobody sees: a key
// that is set twice and a list for a key that has one value (the last one would win), an empty
// value of a boolean and a key without a value (true), a list that does not end, sections and
// quoted keys.
class ConfigFile : public CLI::ConfigTOML {
 public:
  // `keys` gets how many the file sets, when it is read, and must outlive this.
  ConfigFile(ConfigKinds kinds, std::optional<size_t>* keys)
      : kinds_(std::move(kinds)), keys_(keys) {}
  // CLI::ConfigError, naming the key and the line.
  std::vector<CLI::ConfigItem> from_config(std::istream& input) const override;

 private:
  const ConfigKinds kinds_;
  std::optional<size_t>* const keys_;
};

}  // namespace tcgemm

#endif  // TCGEMM_SERVER_MAIN_CONFIG_FILE_H_
