#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace troupe::cluster {

/// Whose processes keep the versions of a stage beside its own.
struct other_keepers {
  std::optional<std::size_t> stage = {};  ///< That of another stage, by place; none: it is alone.
  bool trainer = false;

  bool operator==(const other_keepers&) const = default;
};

/// The other stage of each stage, by place: the next one on another host, of those that keep the
/// fewest, so that a host can be lost as one; where all stages are on one host, the next. A single
/// stage has itself. `hosts`: that of each stage, not empty.
[[nodiscard]] std::vector<std::size_t> second_keepers(const std::vector<std::string>& hosts);

/// Who keeps the versions of each stage, by place: the stage of second_keepers, and the trainer
/// where a keeper more costs no copy, or where there is no other stage. `lends`: whether a stage's
/// process lends memory to the trainer's instead of copying it, for each of `hosts`. `outlives`:
/// in the trainer's place a process that outlives it keeps versions, and has to have all of them.
[[nodiscard]] std::vector<other_keepers> keepers_beside(const std::vector<std::string>& hosts,
                                                        const std::vector<bool>& lends,
                                                        bool outlives = false);

}  // namespace troupe::cluster
