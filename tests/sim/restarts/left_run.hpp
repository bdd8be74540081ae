#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <utility>

#include "actors/recovery/kept_stages_core.hpp"
#include "actors/recovery/kept_versions_core.hpp"
#include "engine/step/step_key.hpp"
#include "tests/sim/restarts/checkpoint_disk.hpp"
#include "tests/sim/versions/number_version.hpp"

namespace troupe::tests {

/// What a trainer says of a step that is done, as actors::note_step.
struct step_note {
  std::uint64_t step = 0;
  std::set<std::uint64_t> evaluated = {};  ///< The steps after which evaluations were reported.
};

/// How trainers have begun, and what became of their checkpoints.
struct restart_counts {
  std::uint64_t from_versions = 0;  ///< Began from what had outlived the one before.
  std::uint64_t from_disk = 0;      ///< Began from a checkpoint, or went back to one.
  std::uint64_t written = 0;        ///< Checkpoints that were whole.
  std::uint64_t given_up = 0;       ///< Checkpoints that could not be written.
};

/// What is left of a run whose trainer is lost, for the next one, and what the user has been told.
struct left_run {
  /// In a process that outlives trainers.
  actors::kept_stages_core<actors::kept_versions_core<number_assembly>, step_note> kept = {};
  checkpoint_disk disk = checkpoint_disk();
  /// By step, before any return, and replica.
  std::map<std::pair<engine::step_key, std::uint32_t>, std::uint64_t> losses = {};
  std::uint64_t told = 0;     ///< The last step that was reported.
  std::uint64_t written = 0;  ///< The step of the last checkpoint that was said to be written.
  std::uint64_t least = 0;    ///< From the version of which step the next trainer can go on.
  restart_counts counts = {};
};

}  // namespace troupe::tests
