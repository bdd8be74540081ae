#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

#include "actors/messages/notes.hpp"
#include "actors/recovery/kept_versions.hpp"

namespace troupe::actors {

/// What a process keeps of a run. It may outlive the node that it was given to, and be given to the
/// next one. `stages` is used by the node's keeper alone, `notes` by its host.
struct kept_stages {
  /// Notes are of steps that have versions. The newest one that all stages have is at most two
  /// notes behind the last.
  static constexpr std::size_t most_notes = 4;

  /// The trainer has two steps in progress: behind its last note there may be as many versions.
  static constexpr std::size_t versions_behind_notes = kept_versions::most + 1;

  std::size_t versions = kept_versions::most;          ///< That are kept of each stage.
  std::map<std::uint32_t, kept_versions> stages = {};  ///< By their numbers among all replicas.
  std::map<std::uint64_t, note_step> notes = {};       ///< By step.

  kept_versions& of(std::uint32_t stage) {
    return stages.try_emplace(stage, versions).first->second;
  }

  /// Notes of later steps are forgotten, for the run has gone back: a newer one would be the oldest
  /// of all.
  void note(const note_step& what) {
    notes.erase(notes.upper_bound(what.step), notes.end());
    notes.insert_or_assign(what.step, what);
    while (notes.size() > most_notes) notes.erase(notes.begin());
  }

  /// The stages that sent versions have ended, and others replace them: the count of incarnations
  /// starts over.
  void begin_again() {
    for (auto& [stage, versions] : stages) versions.begin_again();
  }
};

}  // namespace troupe::actors
