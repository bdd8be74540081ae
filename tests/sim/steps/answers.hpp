#pragma once

#include "engine/collective/all_reduce_core.hpp"
#include "engine/step/stage_core.hpp"
#include "engine/step/step_end_core.hpp"
#include "tests/sim/replay_company.hpp"

/// What the cores of a simulated stage answer, for the sources of this folder: others know no such
/// core.
namespace troupe::tests {

struct replay_company::stage_answer {
  result<engine::stage_effects> effects;
};

struct replay_company::end_answer {
  result<engine::step_end_effects> effects;
};

struct replay_company::end_effect {
  const engine::step_end_effect& what;
};

struct replay_company::sum_answer {
  result<engine::all_reduce_effects> effects;
};

struct replay_company::sum_effect {
  const engine::all_reduce_effect& what;
};

}  // namespace troupe::tests
