#pragma once

#include <atomic>
#include <caf/actor_config.hpp>
#include <caf/actor_proxy.hpp>
#include <caf/mailbox_element.hpp>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "actors/wire/gate.hpp"
#include "messages/frame.hpp"

namespace troupe::actors {

/// The way to another node. Written by its `node` only.
struct route {
  const std::string name;
  std::atomic<std::uint64_t> peer = 0;  ///< The connection; 0 while there is none.
};

/// What carries a message to another process; `node` is the one implementation.
class message_carrier {
 public:
  virtual ~message_carrier() = default;

  /// Called in the sender's thread, by the proxy of the target. The carrier answers a request that
  /// it cannot deliver.
  virtual void forward(const route& to, caf::abstract_actor& target,
                       caf::mailbox_element_ptr what) = 0;

  /// A local actor was linked to (`frame_kind::link`) or unlinked from a remote one. Called under
  /// the locks of both, so the other node is informed later, from another thread.
  virtual void tell_link(messages::frame_kind what, const caf::strong_actor_ptr& local,
                         const caf::strong_actor_ptr& remote) = 0;
};

/// Stands in this process for an actor of another one, so that a handle behaves the same wherever
/// the actor lives. Owned by its handles and by the node's proxy registry.
class remote_actor final : public caf::actor_proxy {
 public:
  /// `carrier` may be called while `open` lets one in.
  remote_actor(caf::actor_config& config, message_carrier& carrier, std::shared_ptr<gate> open,
               std::shared_ptr<const route> way)
      : caf::actor_proxy(config), carrier_(carrier), open_(std::move(open)), way_(std::move(way)) {}

  void enqueue(caf::mailbox_element_ptr what, caf::execution_unit* unit) override;
  void kill_proxy(caf::execution_unit* unit, caf::error reason) override;
  bool add_backlink(caf::abstract_actor* local) override;
  bool remove_backlink(caf::abstract_actor* local) override;

 private:
  void tell_link(messages::frame_kind what, caf::abstract_actor* local);

  message_carrier& carrier_;
  std::shared_ptr<gate> open_;
  const std::shared_ptr<const route> way_;
};

}  // namespace troupe::actors
