#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace troupe::cluster {

/// The file that a shell would run for a word: the word itself where it has a slash, else what the
/// folders of PATH have. Nothing: there is none that may be executed.
[[nodiscard]] std::optional<std::filesystem::path> find_program(const std::string& word);

}  // namespace troupe::cluster
