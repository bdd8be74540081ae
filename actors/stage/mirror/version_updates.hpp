#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "actors/messages/mirror.hpp"
#include "actors/messages/recovery.hpp"
#include "actors/stage/state/stage_state.hpp"

/// Instead of a version, a keeper that shares no memory with the stage may be sent what made it of
/// the version before, where that is less (version_forms_core.hpp): a part of the stage's shell.
namespace troupe::actors {

/// Asks the keeper at this place where it is. Until it has answered it gets states.
void ask_keeper(stage_pointer self, std::size_t place);

/// The gradients of the step that ends are about to be handed to the optimizer.
void note_update(stage_state& state, const run_stage& order, double scale);

/// The version of a step is about to be copied.
void begin_update(stage_state& state, std::uint64_t step, version_origin origin);

/// The optimizer's half of it is there.
void note_copy(stage_state& state, const state_copied& from);

/// All of it is there: its parameters and their state, and its buffers.
void complete_update(stage_state& state, const std::vector<engine::named_tensor>& half,
                     const std::vector<engine::named_tensor>& buffers);

/// What the keeper at this place is sent of the version of a step.
[[nodiscard]] version_form choose_form(stage_state& state, std::size_t place, std::uint64_t step);

/// A piece of an update, for a keeper.
[[nodiscard]] store_update update_message(const stage_state& state, std::uint64_t step,
                                          const tensor_piece& piece);

/// The keeper at this place did not take an update. If it cannot compute it to the same bits, it
/// gets states from now on, with a warning.
void doubt_keeper(stage_state& state, std::size_t place, const error& why);

}  // namespace troupe::actors
