#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace troupe::cluster {

/// The file that a shell would run for a word: the word itself where it has a slash, else what the
/// folders of PATH have. Nothing: there is none that may be executed.
[[nodiscard]] std::optional<std::filesystem::path> find_program(const std::string& word);

/// The file of this very program; where the system does not say, a name that stands for it here.
[[nodiscard]] std::filesystem::path own_program();

}  // namespace troupe::cluster
