#pragma once

#include <caf/actor_control_block.hpp>
#include <cstdint>
#include <utility>

#include "actors/messages/declaration.hpp"
#include "engine/step/step_vote.hpp"

/// How a training step ends on all stages, and what the next loss is multiplied by.
namespace troupe::actors {

/// From a stage to the run's coordinator, once per training step or repeated.
struct step_vote : engine::step_vote {
  static constexpr auto declared = travels("step_vote", messages::lane::control);

  step_vote() = default;
  step_vote(engine::step_vote vote) : engine::step_vote(std::move(vote)) {}
};

/// Its answer, the same for all stages.
struct step_decision : engine::step_decision {
  static constexpr auto declared = travels("step_decision", messages::lane::control);

  step_decision() = default;
  step_decision(engine::step_decision decision) : engine::step_decision(std::move(decision)) {}
};

/// Another stage takes the place of a lost one, whose votes count no more, and votes as that one
/// did. From the pipeline; never between nodes.
struct replace_voter {
  static constexpr auto declared = stays_here;

  stage_id place = {};              // among those of all replicas
  caf::strong_actor_ptr lost = {};  // a stage_actor
};

/// What is the scale, and since how many steps? From the pipeline; never between nodes.
struct read_loss_scale {
  static constexpr auto declared = stays_here;

  std::uint64_t after = 0;    // the decision on so many training steps; 0: the last one
  bool when_decided = false;  // which may come later
};

struct loss_scale_now {
  static constexpr auto declared = stays_here;

  double scale = 1;
  std::uint32_t applied = 0;  // see engine::loss_scaler
};

using step_end_messages =
    message_list<step_vote, step_decision, replace_voter, read_loss_scale, loss_scale_now>;

}  // namespace troupe::actors
