// The server's flags as CLI11 sees them.
#ifndef TCGEMM_SERVER_MAIN_FLAG_TABLE_H_
#define TCGEMM_SERVER_MAIN_FLAG_TABLE_H_

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "server/main/config_file.h"
#include "server/main/units.h"

namespace tcgemm {

// Far from where the clock's nanoseconds overflow, far above any use.
inline constexpr Nanos kLongestDuration = std::chrono::hours(24);

// Ties each flag to its CLI11 option and its line in --print-config.
class FlagTable {
 public:
  explicit FlagTable(CLI::App* app) : app_(app) {}

  const std::vector<std::string>& names() const { return names_; }
  const ConfigKinds& kinds() const { return kinds_; }

  void Add(const std::string& name, std::string* value, const std::string& help) {
    Remember(name, app_->add_option("--" + name, *value, help)->capture_default_str());
  }
  void AddList(const std::string& name, std::vector<std::string>* value, const std::string& help) {
    kinds_.lists.insert(name);
    Remember(name, app_->add_option("--" + name, *value, help)
                       ->delimiter(',')
                       ->expected(1)
                       ->take_all()
                       ->capture_default_str());
  }
  void AddChoice(const std::string& name, std::string* value, std::vector<std::string> choices,
                 const std::string& help) {
    Remember(name, app_->add_option("--" + name, *value, help)
                       ->check(CLI::IsMember(std::move(choices)))
                       ->capture_default_str());
  }
  template <typename Integer>
  void AddNumber(const std::string& name, Integer* value, Integer low, Integer high,
                 const std::string& help) {
    Remember(name, app_->add_option("--" + name, *value, help)
                       ->check(CLI::Range(low, high))
                       ->capture_default_str());
  }
  void AddBytes(const std::string& name, uint64_t* value, const std::string& help) {
    AddParsed(name, value, ParseBytes, help);
  }
  void AddDuration(const std::string& name, Nanos* value, Nanos low, const std::string& help) {
    const auto parse = [low](const std::string& text) -> absl::StatusOr<Nanos> {
      absl::StatusOr<Nanos> time = ParseDuration(text);
      if (time.ok() && (*time < low || *time > kLongestDuration)) {
        return absl::InvalidArgumentError(
            absl::StrCat("'", text, "' must be from ", low.count() / 1'000'000, "ms to 24h"));
      }
      return time;
    };
    AddParsed(name, value, parse, help);
  }
  // Off; "--name" alone turns it on.
  void AddFlag(const std::string& name, bool* value, const std::string& help) {
    kinds_.booleans.insert(name);
    Remember(name, app_->add_option("--" + name, *value, help)
                       ->expected(0, 1)
                       ->default_str("true")
                       ->option_text("[true|false]"));
  }

 private:
  void Remember(const std::string& name, CLI::Option* option) {
    const bool list = option->get_expected_max() > 1 || kinds_.lists.count(name) > 0;
    option->multi_option_policy(list ? CLI::MultiOptionPolicy::TakeAll
                                     : CLI::MultiOptionPolicy::TakeLast);
    names_.push_back(name);
  }

  template <typename Value, typename Parser>
  void AddParsed(const std::string& name, Value* value, Parser parse, const std::string& help) {
    Remember(name, app_->add_option_function<std::string>(
                       "--" + name,
                       [value, parse, name](const std::string& text) {
                         const absl::StatusOr<Value> parsed = parse(text);
                         if (!parsed.ok()) {
                           throw CLI::ValidationError("--" + name,
                                                      std::string(parsed.status().message()));
                         }
                         *value = *parsed;
                       },
                       help));
  }

  CLI::App* const app_;
  std::vector<std::string> names_;
  ConfigKinds kinds_;
};

}  // namespace tcgemm

#endif  // TCGEMM_SERVER_MAIN_FLAG_TABLE_H_
