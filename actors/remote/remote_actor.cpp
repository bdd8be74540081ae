#include "actors/remote/remote_actor.hpp"

#include <caf/message.hpp>

#include "actors/base/errors.hpp"

namespace troupe::actors {

void remote_actor::enqueue(caf::mailbox_element_ptr what, caf::execution_unit*) {
  if (const auto inside = open_->enter()) {
    carrier_.forward(*way_, *this, std::move(what));
  } else if (what->mid.is_request() && what->sender) {
    const error why{errc::cancelled, "this node has left the cluster"};
    what->sender->get()->enqueue(nullptr, what->mid.response_id(), caf::make_message(to_caf(why)),
                                 nullptr);
  }
}

void remote_actor::kill_proxy(caf::execution_unit* unit, caf::error reason) {
  cleanup(std::move(reason), unit);
}

bool remote_actor::add_backlink(caf::abstract_actor* local) {
  const bool added = actor_proxy::add_backlink(local);
  if (added) tell_link(messages::frame_kind::link, local);
  return added;
}

bool remote_actor::remove_backlink(caf::abstract_actor* local) {
  const bool removed = actor_proxy::remove_backlink(local);
  if (removed) tell_link(messages::frame_kind::unlink, local);
  return removed;
}

void remote_actor::tell_link(messages::frame_kind what, caf::abstract_actor* local) {
  if (const auto inside = open_->enter())
    carrier_.tell_link(what, caf::strong_actor_ptr(local->ctrl()), caf::strong_actor_ptr(ctrl()));
}

}  // namespace troupe::actors
