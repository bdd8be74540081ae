// What a node sends for actors, and what it does with the frames that come for them.

#include <algorithm>
#include <caf/actor_registry.hpp>
#include <caf/message.hpp>
#include <utility>
#include <variant>

#include "actors/arrivals/arrivals.hpp"
#include "actors/base/errors.hpp"
#include "actors/futures/request_inbox.hpp"
#include "actors/remote/node.hpp"
#include "messages/base/log.hpp"

namespace troupe::actors {
namespace {

using messages::frame;
using messages::frame_kind;

void enqueue(const caf::strong_actor_ptr& to, caf::strong_actor_ptr sender, caf::message_id mid,
             caf::message what) {
  to->get()->enqueue(std::move(sender), mid, std::move(what), nullptr);
}

/// Whether the frame is less than the hello that opened its connection in every way that a limit
/// counts, so that none can keep it. Most messages are, and need no completion.
bool always_fits(const frame& what) {
  constexpr std::size_t fields_of_hello = 7;
  constexpr std::size_t short_name = 32;
  if (what.body.empty()) return what.tensors.empty();
  const auto& [type, fields] = what.body.front();
  return what.body.size() == 1 && what.tensors.empty() && type.size() <= short_name &&
         fields.size() <= fields_of_hello && std::ranges::all_of(fields, [](const auto& each) {
           const auto* const text = std::get_if<std::string>(&each.of);
           return (text && text->empty()) || std::holds_alternative<std::int64_t>(each.of) ||
                  std::holds_alternative<double>(each.of);
         });
}

/// What is needed to tell whose frame it was.
frame without_content(const frame& what) {
  frame rest{.kind = what.kind,
             .sender = what.sender,
             .target = what.target,
             .request_id = what.request_id};
  for (const auto& each : what.body) rest.body.push_back({each.type, {}});
  return rest;
}

std::string describe(const frame& what, const std::string& node) {
  std::string types;
  for (const auto& each : what.body) types += (types.empty() ? "'" : " '") + each.type + "'";
  const bool answers = what.kind == frame_kind::response;
  return std::string(answers ? "the answer " : "message ") + types + " to actor " +
         std::to_string(what.target) + " of node '" + node + "'";
}

}  // namespace

result<void> node::put(caf::mailbox_element& what, frame& out) {
  if (auto encoded = types_.encode(what.content(), out, *this); !encoded) return encoded;
  if (!what.sender) return {};
  if (what.sender->node() == system_.node())
    out.sender = exported_.add(what.sender);
  else if (what.mid.is_request())
    return fail(errc::unknown_target, "a request of node '" + name_of(what.sender->node()) +
                                          "' cannot be delegated to a third node");
  return {};
}

void node::forward(const route& to, caf::abstract_actor& target, caf::mailbox_element_ptr what) {
  const auto& mid = what->mid;
  frame out{.target = target.id()};
  if (const auto done = put(*what, out); !done) {
    if (mid.is_request() && what->sender)
      return enqueue(what->sender, nullptr, mid.response_id(),
                     caf::make_message(to_caf(done.error())));
    if (!mid.is_response()) return tell_sender(what->sender, done.error());
    out.body.clear();
    out.tensors.clear();
    put_error(out, done.error());
  }
  if (mid.is_request()) {
    const bool known = !what->sender || what->sender == inbox_;
    const auto number = known ? mid : requests().relay(what->sender, mid, target);
    if (!number.is_request()) return;
    out.kind = frame_kind::request;
    out.request_id = number.integer_value();
    if (what->sender) out.deadline_us = requests().time_left_us(number);
  } else if (mid.is_response()) {
    out.kind = frame_kind::response;
    out.request_id = mid.integer_value();
  }
  if (const auto peer = to.peer.load(std::memory_order_acquire)) {
    auto refusal = when_refused(peer_id{peer}, out);
    link_->send(peer_id{peer}, std::move(out), std::move(refusal));
  } else {
    send(to.name, std::move(out));
  }
}

request_inbox& node::requests() const {
  return static_cast<request_inbox&>(*inbox_->get());
}

void node::received(correspondent& from, const frame& in) {
  switch (in.kind) {
    case frame_kind::message:
    case frame_kind::request:
      return deliver(from, in);
    case frame_kind::response:
      return deliver_response(from, in);
    default:
      log::warning(settings_.name + ": ignored an unexpected frame from " + from.name);
  }
}

void node::deliver(correspondent& from, const frame& in) {
  const auto& target = targets_.find(in.target);
  if (!target)
    return refuse(from.name, in,
                  {errc::unknown_target, "there is no actor " + std::to_string(in.target) +
                                             " on node '" + settings_.name + "' (any more)"});
  auto content = types_.decode(in, *this);
  if (!content) return refuse(from.name, in, content.error());
  const bool answered = in.kind == frame_kind::request;
  if (arrivals_->deliver(target, handle_of(from, in.sender),
                         answered ? caf::message_id{in.request_id} : caf::make_message_id(),
                         std::move(*content)))
    link_->post([this] { arrivals_->run_ready(); });  // after all that has come with it
}

void node::deliver_response(correspondent& from, const frame& in) {
  auto decoded = types_.decode(in, *this);
  auto content = decoded ? std::move(*decoded) : caf::make_message(to_caf(decoded.error()));
  const caf::message_id number{in.request_id};
  if (in.target == inbox_->id()) return requests().answer(number, std::move(content));
  // It is relayed, so there is an actor to be told who answers.
  enqueue(inbox_, handle_of(from, in.sender), number, std::move(content));
}

void node::refuse(const std::string& from, const frame& in, const error& why) {
  if (in.kind != frame_kind::request) {
    log::warning(settings_.name + ": dropped a message from " + from + ": " + why.text);
    return;
  }
  const caf::message_id mid{in.request_id};
  frame out{.kind = frame_kind::response,
            .sender = in.target,
            .target = in.sender,
            .request_id = mid.response_id().integer_value()};
  answer(from, std::move(out), why);
}

void node::answer(const std::string& to, frame out, const error& why) {
  put_error(out, why);
  send(to, std::move(out));
}

void node::watch(const std::string& from, caf::actor_id target) {
  const auto ended = [this, from, target](const caf::error& reason) {
    frame out{.kind = frame_kind::down, .sender = target};
    if (reason) put_error(out, from_caf(reason));
    send(from, std::move(out));
  };
  const auto actor = system_.registry().get<caf::strong_actor_ptr>(target);
  if (!actor) return ended(to_caf({errc::unknown_target, "the actor has ended"}));
  actor->get()->attach_functor([ended, open = open_](const caf::error& reason) {
    if (const auto inside = open->enter()) ended(reason);
  });
}

void node::actor_ended(const remote_core::actor_ended& what) {
  const auto reason = what.notice.body.empty() ? caf::error{} : to_caf(error_in(what.notice));
  correspondents_.of(what.node).known.erase(what.notice.sender);
  std::unique_lock lock(mutex_);
  const auto id = known(what.node).id;
  lock.unlock();
  proxies_.erase(id, what.notice.sender, reason);
}

/// CAF links actors under the locks of both, where nothing may be asked of either.
void node::tell_link(frame_kind what, const caf::strong_actor_ptr& local,
                     const caf::strong_actor_ptr& remote) {
  link_->post([this, what, local, remote] {
    std::string name;
    {
      const std::scoped_lock lock(mutex_);
      name = *name_behind(remote->node());
    }
    send(name, {.kind = what, .sender = address_of(local).id, .target = remote->id()});
  });
}

void node::undelivered(const frame& out, const error& why) {
  if (out.kind != frame_kind::request) return;
  const bool relayed = out.sender != inbox_->id();  // a requester adds whom it asked
  enqueue(inbox_, nullptr, caf::message_id{out.request_id}.response_id(),
          caf::make_message(relayed ? to_caf(why) : to_caf_foreign(why)));
}

messages::link::completion node::when_refused(peer_id peer, const frame& out) {
  if (always_fits(out)) return {};
  return [this, peer, what = without_content(out)](const result<void>& how) {
    if (!how && how.error().code == errc::bad_frame) refused(peer, what, how.error());
  };
}

void node::refused(peer_id peer, const frame& what, const error& why) {
  std::string name;
  {
    const std::scoped_lock lock(mutex_);
    name = core_->name_of(peer).value_or("");
  }
  const error told = error_about(describe(what, name), why);
  const auto sender = system_.registry().get<caf::strong_actor_ptr>(what.sender);
  switch (what.kind) {
    case frame_kind::request:  // a requester adds itself what it asked
      return undelivered(what, what.sender == inbox_->id() ? why : told);
    case frame_kind::response:
    case frame_kind::down:
      if (!name.empty()) send_instead(name, what, told);  // else it is gone
      return;
    case frame_kind::lookup: {
      std::unique_lock lock(mutex_);
      core_->lookup_failed(what.request_id, told);
      lock.unlock();
      return changed_.notify_all();
    }
    case frame_kind::hello:
      log::error(settings_.name + ": " + told.text);
      return link_->close(peer, told);
    default:
      tell_sender(sender, told);
  }
}

void node::send_instead(const std::string& to, frame of, const error& why) {
  const bool was_error = of.body.size() == 1 && of.body.front().type == "error";
  of.body.clear();
  put_error(of, was_error ? error{why.code, ""} : why);  // without a text it fits
  send(to, std::move(of));
}

void node::tell_sender(const caf::strong_actor_ptr& sender, const error& why) {
  log::warning(settings_.name + ": " + why.text);
  if (sender && sender->node() == system_.node())
    enqueue(sender, nullptr, caf::make_message_id(), caf::make_message(to_caf(why)));
}

/// Actors that are linked across nodes send each other their exits themselves; only when a node is
/// lost it is up to us.
void node::node_down(const remote_core::node_down& what) {
  correspondents_.lost(what.node);
  std::unique_lock lock(mutex_);
  const auto id = known(what.node).id;
  lock.unlock();
  const auto why = to_caf(what.why);
  for (const auto& [there, here] : what.broken) {
    const auto other = proxies_.get(id, there);
    const auto actor = system_.registry().get<caf::strong_actor_ptr>(here);
    if (!other || !actor) continue;
    const caf::exit_msg exit{caf::actor_cast<caf::actor_addr>(other), why};
    enqueue(actor, nullptr, caf::make_message_id(), caf::make_message(exit));
  }
  // That fails the requests to them, too.
  for (const auto& proxy : proxies_.get_all(id)) proxies_.erase(id, proxy->id(), why);
  if (settings_.on_node_down) settings_.on_node_down(what.node, what.why);
}

void node::put_error(frame& out, const error& what) {
  // Not refused: every registry knows errors.
  [[maybe_unused]] const auto put = types_.encode(caf::make_message(to_caf(what)), out, *this);
}

error node::error_in(const frame& in) {
  const auto content = types_.decode(in, *this);
  if (content && content->match_elements<caf::error>())
    return from_caf(content->get_as<caf::error>(0));
  return {errc::handler_failed, "the peer gave no reason"};
}

}  // namespace troupe::actors
