#pragma once

#include <caf/actor_cast.hpp>
#include <caf/actor_control_block.hpp>

namespace troupe::actors {

/// Whether two handles, of any types, are of one actor. Other than their comparison this holds
/// where one of them has outlived the loss of the actor's node, and the other came after it. Null
/// is no actor.
template <class One, class Other>
[[nodiscard]] bool is_same_actor(const One& one, const Other& other) {
  const auto* const first = caf::actor_cast<caf::actor_control_block*>(one);
  const auto* const second = caf::actor_cast<caf::actor_control_block*>(other);
  return first != nullptr && second != nullptr && first->id() == second->id() &&
         first->node() == second->node();
}

/// The same as a function object.
struct same_actor {
  template <class One, class Other>
  [[nodiscard]] bool operator()(const One& one, const Other& other) const {
    return is_same_actor(one, other);
  }
};

}  // namespace troupe::actors
