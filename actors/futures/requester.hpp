#pragma once

#include <caf/actor_cast.hpp>
#include <caf/actor_system.hpp>
#include <caf/error.hpp>
#include <caf/mailbox_element.hpp>
#include <caf/message.hpp>
#include <caf/type_erased_tuple.hpp>
#include <chrono>
#include <string>
#include <type_traits>
#include <typeinfo>
#include <utility>

#include "actors/base/errors.hpp"
#include "actors/futures/future.hpp"
#include "actors/futures/request_inbox.hpp"

namespace troupe::actors {

/// Sends requests to actors of this and other processes and returns futures for their answers. The
/// requesters of an actor system share one table of requests, so that another one costs next to
/// nothing. A resource: it must end before the node whose names it uses and before the actor
/// system; outstanding requests then fail with errc::cancelled. Safe from any thread.
class requester {
 public:
  explicit requester(caf::actor_system& system, node_names names = {});
  requester(const requester&) = delete;
  requester& operator=(const requester&) = delete;
  ~requester();

  /// Sends `message` (a caf::message for several elements) to an actor handle and returns the
  /// future of its answer, a `T`; with void, of any answer that is not an error. It is settled in
  /// the thread that brings the answer: an actor's, a link's.
  ///
  /// Errors of the actor's own come as they are. The others say who was asked what, and why there
  /// is no answer:
  /// - timed_out: none within `deadline`, which a remote actor's process is told too;
  /// - unknown_target: the actor has ended or never existed;
  /// - handler_failed: it ended in a handler that threw;
  /// - unknown_message: it does not handle the message, or answered with another type than T;
  /// - peer_lost: its process died, hung, or could not be reached;
  /// - cancelled: its process left in order, or this requester ended.
  template <class T, class Handle, class Message>
  [[nodiscard]] future<T> request(const Handle& target, Message message,
                                  std::chrono::nanoseconds deadline);

 private:
  template <class T>
  class open_request;

  struct question {  // for error texts
    caf::actor_id target;
    const caf::node_id* node;  // kept by the inbox
    const std::type_info* message;
  };
  [[nodiscard]] request_inbox& inbox() const { return static_cast<request_inbox&>(*inbox_->get()); }
  [[nodiscard]] static error explain(const error& why, const question& asked,
                                     const std::string& node);

  const caf::strong_actor_ptr inbox_;
  const request_inbox::owner owner_;
};

/// A future's state and what the table knows of its request: one allocation.
template <class T>
class requester::open_request final : public future_state<T>, public unanswered {
 public:
  /// The inbox outlives it: it is in the inbox's table, or in the hands of who takes it from there.
  open_request(const question& asked, const request_inbox& inbox, request_inbox::owner whose)
      : asked_(asked), inbox_(inbox), whose_(whose) {}

  void answered(caf::mailbox_element& answer) noexcept override {
    settle_with(answer.content());
    this->release();
  }

  void answered(caf::message answer) noexcept override {
    settle_with(answer);
    this->release();
  }

  void failed(const error& why) noexcept override {
    explain_and_settle(why);
    this->release();
  }

 private:
  void settle_with(caf::type_erased_tuple& content) {
    if (!content.empty() && content.match_elements<caf::error>()) {
      const auto& why = content.get_as<caf::error>(0);
      is_own(why) ? void(this->settle_error(from_caf(why))) : explain_and_settle(from_caf(why));
    } else if constexpr (std::is_void_v<T>) {
      this->settle({});
    } else if (content.match_elements<T>()) {
      this->settle(content.move_if_unshared<T>(0));
    } else {
      explain_and_settle({errc::unknown_message,
                          "was answered with " + content.stringify() + ", which has another type"});
    }
  }

  void explain_and_settle(const error& why) {
    if (this->ready()) return;
    this->settle_error(explain(why, asked_, inbox_.name_of(whose_, *asked_.node)));
  }

  const question asked_;
  const request_inbox& inbox_;
  const request_inbox::owner whose_;
};

template <class T, class Handle, class Message>
future<T> requester::request(const Handle& target, Message message,
                             std::chrono::nanoseconds deadline) {
  if (!target)
    return settled_future<T>(fail(errc::unknown_target, "a request was given no actor to go to"));
  auto* const to = caf::actor_cast<caf::abstract_actor*>(target);
  auto& all = inbox();
  const question asked{to->id(), &all.kept(to->ctrl()->node()), &typeid(Message)};
  auto* const state = new open_request<T>(asked, all, owner_);
  future<T> handle(reference<future_state<T>>::share(*state));
  const auto now = request_inbox::clock::now();
  const auto longest = request_inbox::clock::time_point::max() - now;
  all.send(*state, owner_, *to,
           deadline < longest ? now + deadline : request_inbox::clock::time_point::max(),
           [&](std::uint64_t number) {
             return caf::make_mailbox_element(inbox_, caf::make_message_id(number), {},
                                              std::move(message));
           });
  return handle;
}

}  // namespace troupe::actors
