#pragma once

#include <caf/actor_config.hpp>
#include <caf/actor_proxy.hpp>
#include <caf/mailbox_element.hpp>
#include <memory>
#include <utility>

#include "actors/remote/gate.hpp"
#include "messages/frame.hpp"

namespace troupe::actors {

/// What carries a message to another process; `node` is the one implementation.
class message_carrier {
 public:
  virtual ~message_carrier() = default;

  /// Called in the sender's thread. The carrier answers a request that it cannot deliver.
  virtual void forward(const caf::node_id& node, caf::actor_id target,
                       caf::mailbox_element_ptr what) = 0;

  /// A local actor was linked to (`frame_kind::link`) or unlinked from a remote one. Called under
  /// the locks of both: to be told later, from another thread.
  virtual void tell_link(messages::frame_kind what, const caf::strong_actor_ptr& local,
                         const caf::strong_actor_ptr& remote) = 0;
};

/// Stands in this process for an actor of another one, so that a handle behaves the same wherever
/// the actor lives. Owned by its handles and by the node's proxy registry.
class remote_actor final : public caf::actor_proxy {
 public:
  /// `carrier` may be called while `open` lets one in.
  remote_actor(caf::actor_config& config, message_carrier& carrier, std::shared_ptr<gate> open)
      : caf::actor_proxy(config), carrier_(carrier), open_(std::move(open)) {}

  void enqueue(caf::mailbox_element_ptr what, caf::execution_unit* unit) override;
  void kill_proxy(caf::execution_unit* unit, caf::error reason) override;
  bool add_backlink(caf::abstract_actor* local) override;
  bool remove_backlink(caf::abstract_actor* local) override;

 private:
  void tell_link(messages::frame_kind what, caf::abstract_actor* local);

  message_carrier& carrier_;
  std::shared_ptr<gate> open_;
};

}  // namespace troupe::actors
