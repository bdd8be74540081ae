#include "actors/remote/remote_actor.hpp"

#include <caf/message.hpp>

#include "actors/errors.hpp"

namespace troupe::actors {

void remote_actor::enqueue(caf::mailbox_element_ptr what, caf::execution_unit*) {
  if (const auto inside = open_->enter()) {
    carrier_.forward(*way_, id(), std::move(what));
  } else if (what->mid.is_request() && what->sender) {
    const error why{errc::cancelled, "this node has left the cluster"};
    what->sender->get()->enqueue(nullptr, what->mid.response_id(), caf::make_message(to_caf(why)),
                                 nullptr);
  }
}

void remote_actor::kill_proxy(caf::execution_unit* unit, caf::error reason) {
  cleanup(std::move(reason), unit);
}

}  // namespace troupe::actors
