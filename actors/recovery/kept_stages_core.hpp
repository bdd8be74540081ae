#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

namespace troupe::actors {

/// What a process keeps of a run: a pure value type, which looks into no version. It may outlive
/// the node that it was given to, and be given to the next one. `Versions`: those of one stage, as
/// kept_versions_core. `Note`: of a step that is done, as note_step.
template <class Versions, class Note>
struct kept_stages_core {
  /// Notes are of steps that have versions. The newest one that all stages have is at most two
  /// notes behind the last.
  static constexpr std::size_t most_notes = 4;

  /// The trainer has two steps in progress: behind its last note there may be as many versions.
  static constexpr std::size_t versions_behind_notes = Versions::most + 1;

  std::size_t versions = Versions::most;          ///< That are kept of each stage.
  std::map<std::uint32_t, Versions> stages = {};  ///< By their numbers among all replicas.
  std::map<std::uint64_t, Note> notes = {};       ///< By step.

  Versions& of(std::uint32_t stage) { return stages.try_emplace(stage, versions).first->second; }

  /// Notes of later steps are forgotten, for the run has gone back: a newer one would be the oldest
  /// of all.
  void note(const Note& what) {
    notes.erase(notes.upper_bound(what.step), notes.end());
    notes.insert_or_assign(what.step, what);
    while (notes.size() > most_notes) notes.erase(notes.begin());
  }

  /// The stages that sent versions have ended, and others replace them: the count of incarnations
  /// starts over.
  void begin_again() {
    for (auto& [stage, versions_of_stage] : stages) versions_of_stage.begin_again();
  }
};

}  // namespace troupe::actors
