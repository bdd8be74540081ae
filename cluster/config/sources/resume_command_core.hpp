#pragma once

#include <string>
#include <vector>

namespace troupe::cluster {

/// How a run was started, as far as that says how it is resumed.
struct started_as {
  std::vector<std::string> words;  ///< The command, as it was given; empty: not known.
  std::string resume;              ///< What its settings say, by whatever way: [checkpoint] resume.
  bool verifies = false;           ///< Which only a run from its first step can.
  std::string from = "latest";     ///< What it is to go on from; or the number of a step.
};

/// The command with which a shell in the same folder has the run go on from its last checkpoint:
/// the one that it was started with, with `--resume latest`, or that step, where its settings do
/// not say that or auto. Empty where that is not known.
[[nodiscard]] std::string command_to_resume(const started_as& how);

}  // namespace troupe::cluster
