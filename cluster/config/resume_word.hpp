#pragma once

#include <string>

namespace troupe::cluster {

/// Whether a word of --resume names a checkpoint in the folder --checkpoint-dir: latest, auto or
/// the number of a step; the empty word counts as one.
[[nodiscard]] inline bool names_in_folder(const std::string& resume) {
  return resume == "latest" || resume == "auto" ||
         resume.find_first_not_of("0123456789") == std::string::npos;
}

}  // namespace troupe::cluster
