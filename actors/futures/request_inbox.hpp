#pragma once

#include <caf/actor_config.hpp>
#include <caf/mailbox_element.hpp>
#include <caf/monitorable_actor.hpp>
#include <caf/node_id.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

#include "actors/futures/request_table.hpp"
#include "actors/futures/watched_targets.hpp"
#include "messages/base/error.hpp"

namespace troupe::actors {

/// A request that waits for its answer. The table owns a reference to it, which the one call of
/// `answered` or `failed` takes over.
class unanswered {
 public:
  virtual void answered(caf::mailbox_element& answer) noexcept = 0;
  /// `why` is completed with what was asked of whom.
  virtual void failed(const error& why) noexcept = 0;

 protected:
  ~unanswered() = default;
};

/// The sender of a requester's requests, to CAF an actor. It has no mailbox: an answer is handled
/// in the thread that brings it. Watches the actors that owe it answers and fails what they leave
/// open.
class request_inbox final : public caf::monitorable_actor {
 public:
  using clock = std::chrono::steady_clock;

  explicit request_inbox(caf::actor_config& config);

  void enqueue(caf::mailbox_element_ptr what, caf::execution_unit* unit) override;

  /// Sends `what` to `target`; `make` builds the message once its number is known.
  template <class Make>
  void send(unanswered& request, caf::abstract_actor& target, clock::time_point deadline,
            Make make) {
    const auto number = table_.put(&request, tag_of(target), deadline);
    if (number == 0) return request.failed({errc::cancelled, "too many requests are outstanding"});
    watch(target);
    target.enqueue(make(number), nullptr);
  }

  /// Fails what is outstanding with errc::cancelled. Nothing may be sent any more.
  void close();

  /// How much longer a request's sender waits, at least a microsecond; 0 if it does not.
  [[nodiscard]] std::uint64_t time_left_us(caf::message_id number) const;

 private:
  using table = request_table<unanswered>;

  [[nodiscard]] static table::tag tag_of(const caf::abstract_actor& target) {
    return reinterpret_cast<table::tag>(&target);
  }
  void watch(caf::abstract_actor& target);
  void ended(table::tag target, const caf::error& reason);

  watched_targets watched_;
  table table_;
};

}  // namespace troupe::actors
