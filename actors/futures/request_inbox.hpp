#pragma once

#include <atomic>
#include <caf/actor_config.hpp>
#include <caf/actor_system.hpp>
#include <caf/mailbox_element.hpp>
#include <caf/message.hpp>
#include <caf/message_id.hpp>
#include <caf/monitorable_actor.hpp>
#include <caf/node_id.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>

#include "actors/futures/request_table.hpp"
#include "actors/futures/watched_targets.hpp"
#include "messages/base/error.hpp"

namespace troupe::actors {

/// Returns the name of a remote actor's node for errors; normally `node::name_of`.
using node_names = std::function<std::string(const caf::node_id&)>;

/// An outstanding request. The table owns a reference to it, which the only call of `answered` or
/// `failed` takes over.
class unanswered {
 public:
  virtual void answered(caf::mailbox_element& answer) noexcept = 0;
  /// By an actor of another process, who is not told apart.
  virtual void answered(caf::message answer) noexcept = 0;
  /// `why` is completed with what was asked of whom.
  virtual void failed(const error& why) noexcept = 0;

 protected:
  ~unanswered() = default;
};

/// All outstanding requests of an actor system: those of its requesters, and those of its actors to
/// actors of other processes. To CAF it is an actor, the sender of a requester's requests. It has
/// no mailbox: an answer is handled in the thread that brings it. It monitors the actors that owe
/// it answers, and fails their requests when they end. Safe from any thread.
class request_inbox final : public caf::monitorable_actor {
 public:
  using clock = std::chrono::steady_clock;
  /// Whose request it is, for `give_up`.
  using owner = request_table<unanswered>::tag;

  explicit request_inbox(caf::actor_config& config);
  ~request_inbox() override;

  /// The inbox of this actor system, created at the first call.
  [[nodiscard]] static caf::strong_actor_ptr of(caf::actor_system& system);

  void enqueue(caf::mailbox_element_ptr what, caf::execution_unit* unit) override;

  /// Enters a requester, until `give_up`.
  [[nodiscard]] owner enlist(node_names names);

  /// Sends `what` to `target`; `make` builds the message once its number is known.
  template <class Make>
  void send(unanswered& request, owner whose, caf::abstract_actor& target,
            clock::time_point deadline, Make make) {
    if (const auto number = put(request, whose, target, deadline))
      target.enqueue(make(number), nullptr);
  }

  /// An answer from another process to a requester's request, without an element of a mailbox that
  /// nothing is kept in.
  void answer(caf::message_id number, caf::message content);

  /// Records a request of an actor, whose answer is to be passed on to it as the answer to `mid`.
  /// Returns the id under which the target is to be asked; if the request has failed already, an id
  /// of no request.
  [[nodiscard]] caf::message_id relay(const caf::strong_actor_ptr& sender, caf::message_id mid,
                                      caf::abstract_actor& target);

  /// Fails the outstanding requests of that owner with errc::cancelled. After it returns, no
  /// deadline settles a request of the owner any more, and its names are not asked.
  void give_up(owner whose);

  /// A node's name in the words of that owner; empty if it has none, or has been given up.
  [[nodiscard]] std::string name_of(owner whose, const caf::node_id& node) const;

  /// The same id, at an address that stays as long as the inbox: what requests keep in place of a
  /// reference, which sender and answerer would count on the same cache line. Never forgotten, as
  /// nodes are not.
  [[nodiscard]] const caf::node_id& kept(const caf::node_id& node);

  /// How much longer a request's sender waits, at least a microsecond; 0 if it does not.
  [[nodiscard]] std::uint64_t time_left_us(caf::message_id number) const;

 private:
  using table = request_table<unanswered>;

  [[nodiscard]] static table::tag tag_of(const caf::abstract_actor& target) {
    return reinterpret_cast<table::tag>(&target);
  }
  /// Returns the request's number; 0: it has failed because there are too many.
  std::uint64_t put(unanswered& request, owner whose, caf::abstract_actor& target,
                    clock::time_point deadline);
  void watch(caf::abstract_actor& target);
  void ended(table::tag target, const caf::error& reason);

  mutable std::mutex names_mutex_;
  owner last_owner_ = 0;
  std::map<owner, node_names> names_;
  std::set<caf::node_id> node_ids_;
  std::atomic<const caf::node_id*> last_kept_ = nullptr;  // of node_ids_, to be found without lock

  watched_targets watched_;
  table table_;
};

}  // namespace troupe::actors
