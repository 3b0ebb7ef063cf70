// Files that exist in a test alone.
#ifndef TCGEMM_TESTS_ENGINE_GIVEN_FILES_H_
#define TCGEMM_TESTS_ENGINE_GIVEN_FILES_H_

#include <map>
#include <optional>
#include <string>
#include <utility>

#include "server/engine/memory_limit.h"

namespace tcgemm {

// Reads these by path; any other is not there.
inline FileReader Files(std::map<std::string, std::string> files) {
  return [files = std::move(files)](const std::string& path) -> std::optional<std::string> {
    const auto found = files.find(path);
    if (found == files.end()) return std::nullopt;
    return found->second;
  };
}

}  // namespace tcgemm

#endif  // TCGEMM_TESTS_ENGINE_GIVEN_FILES_H_
