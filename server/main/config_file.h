// How the file that --config names is read.
#ifndef TCGEMM_SERVER_MAIN_CONFIG_FILE_H_
#define TCGEMM_SERVER_MAIN_CONFIG_FILE_H_

#include <CLI/CLI.hpp>
#include <istream>
#include <optional>
#include <string>
#include <vector>

namespace tcgemm {

// CLI11's TOML of at most 1 MiB, where a key that is set twice is an error (the last one would win
// without a word), as are sections and quoted keys.
class ConfigFile : public CLI::ConfigTOML {
 public:
  // `keys` gets how many the file sets, when it is read, and must outlive this.
  explicit ConfigFile(std::optional<size_t>* keys) : keys_(keys) {}
  // CLI::ConfigError, naming the key and the line.
  std::vector<CLI::ConfigItem> from_config(std::istream& input) const override;

 private:
  std::optional<size_t>* const keys_;
};

// Words for what is there and is no regular file: a pipe without a writer would keep the server for
// ever. Empty for others.
std::string CheckRegularFile(const std::string& path);

}  // namespace tcgemm

#endif  // TCGEMM_SERVER_MAIN_CONFIG_FILE_H_
