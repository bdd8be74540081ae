#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "engine/step/replay_window.hpp"

namespace troupe::cluster {

/// What a lost trainer has left of a step that it had told.
struct left_note {
  std::uint64_t step = 0;
  std::string slices = {};  ///< How its model was cut, in its words.

  bool operator==(const left_note&) const = default;
};

/// Behind which step a trainer goes on that takes the place of a lost one: the last one with a note
/// and with a version of each stage, of a model that is cut as its own. Nothing: there is none
/// behind the `steps_before` that it has without it; what was left is to be forgotten then, since
/// it may be of steps that the trainer comes to, and of a model that was cut otherwise. So all that
/// is left is of one cut. `of_stages`: the steps of the versions that are left of each. Pure.
[[nodiscard]] inline std::optional<std::uint64_t> last_left(
    const std::vector<left_note>& notes, const std::string& slices, std::uint64_t steps_before,
    const std::vector<std::vector<std::uint64_t>>& of_stages) {
  auto complete = of_stages;
  complete.emplace_back();
  for (const auto& each : notes)
    if (each.step > steps_before && each.slices == slices) complete.back().push_back(each.step);
  return engine::newest_common(complete, std::numeric_limits<std::uint64_t>::max());
}

}  // namespace troupe::cluster
