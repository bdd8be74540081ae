#pragma once

#include <caf/actor_control_block.hpp>
#include <optional>
#include <vector>

#include "actors/futures/requester.hpp"
#include "actors/messages/notes.hpp"
#include "messages/base/error.hpp"

/// What a trainer asks the process that has outlived another one (see node_group::outliving_host).
namespace troupe::cluster {

/// Has it forget all that it keeps. That may be of steps that the run comes to, and of a model that
/// was cut otherwise: a stage that is lost before there are newer versions must not go on from it.
/// Errors: those of the request, unless it is lost or has left: nobody asks it for versions then.
[[nodiscard]] result<void> forget_left(actors::requester& ask, const caf::strong_actor_ptr& host);

/// The notes of a trainer's last steps. Nothing: it does not tell them, and has forgotten all that
/// it kept or is lost. Errors: those of `forget_left`.
[[nodiscard]] result<std::optional<std::vector<actors::note_step>>> notes_left(
    actors::requester& ask, const caf::strong_actor_ptr& host);

}  // namespace troupe::cluster
