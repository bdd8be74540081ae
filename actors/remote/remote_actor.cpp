#include "actors/remote/remote_actor.hpp"

namespace troupe::actors {

void remote_actor::enqueue(caf::mailbox_element_ptr what, caf::execution_unit*) {
  carrier_.forward(node(), id(), std::move(what));
}

void remote_actor::kill_proxy(caf::execution_unit* unit, caf::error reason) {
  cleanup(std::move(reason), unit);
}

}  // namespace troupe::actors
