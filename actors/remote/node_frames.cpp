// What a node sends for actors, and what it does with the frames that come for them.

#include <algorithm>
#include <caf/actor_registry.hpp>
#include <caf/message.hpp>
#include <typeinfo>
#include <utility>
#include <variant>

#include "actors/errors.hpp"
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

/// The inbox of a requester, which keeps its own list of what is outstanding; null for other
/// actors.
const request_inbox* as_inbox(const caf::strong_actor_ptr& actor) {
  const auto& object = *actor->get();
  return typeid(object) == typeid(request_inbox) ? static_cast<const request_inbox*>(&object)
                                                 : nullptr;
}

/// Whether the frame is less than the hello that opened its connection in every way that a limit
/// counts, so that none can keep it. Most messages are, and need no completion.
bool always_fits(const frame& what) {
  constexpr std::size_t fields_of_hello = 6;
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

void node::forward(const route& to, caf::actor_id target, caf::mailbox_element_ptr what) {
  const auto& mid = what->mid;
  frame out{.target = target};
  auto encoded = types_.encode(what->content(), out, *this);
  if (encoded && what->sender) {
    if (what->sender->node() == system_.node()) {
      out.sender = make_reachable(what->sender);
    } else if (mid.is_request()) {
      encoded = fail(errc::unknown_target, "a request of node '" + name_of(what->sender->node()) +
                                               "' cannot be delegated to a third node");
    }
  }
  if (!encoded && mid.is_response()) {
    out.body.clear();
    out.tensors.clear();
    put_error(out, encoded.error());
  } else if (!encoded) {
    if (mid.is_request() && what->sender)
      enqueue(what->sender, nullptr, mid.response_id(), caf::make_message(to_caf(encoded.error())));
    else
      tell_sender(what->sender, encoded.error());
    return;
  }
  if (mid.is_request() || mid.is_response()) out.request_id = mid.integer_value();
  if (mid.is_request()) out.kind = frame_kind::request;
  if (mid.is_response()) out.kind = frame_kind::response;
  if (out.kind == frame_kind::request && what->sender) {
    if (const auto* inbox = as_inbox(what->sender)) {
      out.deadline_us = inbox->time_left_us(mid);
    } else {
      const std::scoped_lock lock(mutex_);
      pending_[{out.sender, mid.request_id().integer_value()}] = {what->sender, mid, to.name};
    }
  }
  if (const auto peer = to.peer.load(std::memory_order_acquire)) {
    auto refusal = when_refused(peer_id{peer}, out);
    link_->send(peer_id{peer}, std::move(out), std::move(refusal));
  } else {
    send(to.name, std::move(out));
  }
}

void node::received(correspondent& from, const frame& in) {
  switch (in.kind) {
    case frame_kind::message:
    case frame_kind::request:
      return deliver(from, in);
    case frame_kind::response:
      return in.target == 0 ? finish_lookup(from.name, in) : deliver_response(from, in);
    case frame_kind::monitor:
      return watch(from.name, in.target);
    case frame_kind::down:
      return actor_ended(from, in);
    case frame_kind::link:
      return link_actor(from.name, in);
    case frame_kind::unlink:
      return unlink_actor(from.name, in);
    case frame_kind::lookup:
      return answer_lookup(from.name, in);
    case frame_kind::heartbeat:
      if (settings_.on_told && !in.body.empty()) settings_.on_told(from.name, in.body);
      return;
    default:
      log::warning(settings_.name + ": ignored an unexpected frame from " + from.name);
  }
}

void node::deliver(correspondent& from, const frame& in) {
  const auto target = system_.registry().get<caf::strong_actor_ptr>(in.target);
  if (!target)
    return refuse(from.name, in,
                  {errc::unknown_target, "there is no actor " + std::to_string(in.target) +
                                             " on node '" + settings_.name + "' (any more)"});
  auto content = types_.decode(in, *this);
  if (!content) return refuse(from.name, in, content.error());
  const bool answered = in.kind == frame_kind::request;
  enqueue(target, handle_of(from, in.sender),
          answered ? caf::message_id{in.request_id} : caf::make_message_id(), std::move(*content));
}

caf::strong_actor_ptr node::asker(caf::actor_id id) {
  if (last_inbox_ && last_inbox_->id() == id) return last_inbox_;
  auto found = system_.registry().get<caf::strong_actor_ptr>(id);
  if (found && as_inbox(found)) last_inbox_ = found;
  return found;
}

void node::deliver_response(correspondent& from, const frame& in) {
  const auto target = asker(in.target);
  if (!target) return;
  const caf::message_id mid{in.request_id};
  const bool direct = as_inbox(target) != nullptr;
  if (!direct) {
    const std::scoped_lock lock(mutex_);
    if (pending_.erase({in.target, mid.request_id().integer_value()}) == 0) return;
  }
  auto content = types_.decode(in, *this);
  enqueue(target, direct ? nullptr : handle_of(from, in.sender), mid,
          content ? std::move(*content) : caf::make_message(to_caf(content.error())));
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
  put_error(out, why);
  send(from, std::move(out));
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

void node::actor_ended(correspondent& from, const frame& in) {
  const auto reason = in.body.empty() ? caf::error{} : to_caf(error_in(in));
  from.known.erase(in.sender);
  forget_links(from.name, [&](const remote_link& known) { return known.there == in.sender; });
  proxies_.erase(id_of(from.name), in.sender, reason);
}

/// CAF links actors under the locks of both, where nothing may be asked of either.
void node::tell_link(frame_kind what, const caf::strong_actor_ptr& local,
                     const caf::strong_actor_ptr& remote) {
  run_on_link([this, what, local, remote] {
    std::string name;
    {
      const std::scoped_lock lock(mutex_);
      name = names_.at(remote->node());
    }
    send(name, {.kind = what, .sender = address_of(local).id, .target = remote->id()});
  });
}

/// The other actor sends its exit itself when it ends; only when its node is lost it is up to us.
/// The end of ours reaches it as that of any watched actor.
void node::link_actor(const std::string& from, const frame& in) {
  const auto actor = system_.registry().get<caf::strong_actor_ptr>(in.target);
  if (!actor) return;
  const auto other = resolve({from, "", in.sender});  // watched from here on
  const std::scoped_lock lock(mutex_);
  remote_links_.emplace(from, remote_link{in.sender, caf::actor_cast<caf::actor_addr>(actor)});
}

void node::unlink_actor(const std::string& from, const frame& in) {
  forget_links(from, [&](const remote_link& known) {
    return known.there == in.sender && known.here.id() == in.target;
  });
}

template <class Condition>
void node::forget_links(const std::string& name, Condition condition) {
  const std::scoped_lock lock(mutex_);
  const auto [first, last] = remote_links_.equal_range(name);
  for (auto it = first; it != last;)
    it = condition(it->second) ? remote_links_.erase(it) : std::next(it);
}

void node::break_links(const std::string& name, const caf::error& why) {
  std::vector<remote_link> broken;
  {
    const std::scoped_lock lock(mutex_);
    const auto [first, last] = remote_links_.equal_range(name);
    for (auto it = first; it != last; ++it) broken.push_back(it->second);
    remote_links_.erase(first, last);
  }
  const auto id = id_of(name);
  for (const auto& [there, here] : broken) {
    const auto other = proxies_.get(id, there);
    const auto actor = caf::actor_cast<caf::strong_actor_ptr>(here);
    if (!other || !actor) continue;
    const caf::exit_msg exit{caf::actor_cast<caf::actor_addr>(other), why};
    enqueue(actor, nullptr, caf::make_message_id(), caf::make_message(exit));
  }
}

void node::answer_lookup(const std::string& from, const frame& in) {
  frame out{.kind = frame_kind::response, .request_id = in.request_id};
  const std::string* name = nullptr;
  if (in.body.size() == 1 && in.body[0].fields.size() == 1)
    name = std::get_if<std::string>(&in.body[0].fields[0].of);
  caf::strong_actor_ptr actor;
  if (name) {
    const std::scoped_lock lock(mutex_);
    if (const auto found = published_.find(*name); found != published_.end()) actor = found->second;
  }
  if (actor) {
    out.body.push_back({"found", {{address_of(actor)}}});
  } else {
    put_error(out, {errc::unknown_target, "node '" + settings_.name + "' has published no actor '" +
                                              (name ? *name : "") + "'"});
  }
  send(from, std::move(out));
}

void node::finish_lookup(const std::string& from, const frame& in) {
  lookup answer;
  {
    const std::scoped_lock lock(mutex_);
    const auto found = lookups_.find(in.request_id);
    if (found == lookups_.end() || found->second.first != from) return;
    answer = std::move(found->second.second);
    lookups_.erase(found);
  }
  const auto* address = in.body.size() == 1 && in.body[0].fields.size() == 1
                            ? std::get_if<messages::actor_ref>(&in.body[0].fields[0].of)
                            : nullptr;
  if (address) {
    answer.set_value(resolve(*address));
  } else {
    answer.set_value(tl::unexpected(error_in(in)));
  }
}

void node::undelivered(const frame& out, const error& why) {
  if (out.kind != frame_kind::request) return;
  const caf::message_id mid{out.request_id};
  const auto sender = system_.registry().get<caf::strong_actor_ptr>(out.sender);
  if (sender && as_inbox(sender))
    return enqueue(sender, nullptr, mid.response_id(), caf::make_message(to_caf_foreign(why)));
  std::vector<pending_request> failed;
  {
    const std::scoped_lock lock(mutex_);
    auto found = pending_.extract({out.sender, mid.request_id().integer_value()});
    if (found) failed.push_back(std::move(found.mapped()));
  }
  fail_requests(failed, why);
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
  const error told{why.code, describe(what, name) + ": " + why.text};
  const auto sender = system_.registry().get<caf::strong_actor_ptr>(what.sender);
  switch (what.kind) {
    case frame_kind::request:  // a requester adds itself what it asked
      return undelivered(what, sender && as_inbox(sender) ? why : told);
    case frame_kind::response:
    case frame_kind::down: {
      if (name.empty()) return;  // it is gone
      auto instead = what;
      const bool was_error = what.body.size() == 1 && what.body.front().type == "error";
      instead.body.clear();
      put_error(instead, was_error ? error{why.code, ""} : told);  // without a text it fits
      return send(name, std::move(instead));
    }
    case frame_kind::lookup:
      return fail_lookup(what.request_id, told);
    case frame_kind::hello:
      log::error(settings_.name + ": " + told.text);
      return link_->close(peer, told);
    default:
      tell_sender(sender, told);
  }
}

void node::tell_sender(const caf::strong_actor_ptr& sender, const error& why) {
  log::warning(settings_.name + ": " + why.text);
  if (sender && sender->node() == system_.node())
    enqueue(sender, nullptr, caf::make_message_id(), caf::make_message(to_caf(why)));
}

void node::fail_lookup(std::uint64_t number, const error& why) {
  std::optional<lookup> question;
  {
    const std::scoped_lock lock(mutex_);
    if (auto found = lookups_.extract(number)) question = std::move(found.mapped().second);
  }
  if (question) question->set_value(tl::unexpected(why));
}

void node::node_down(const std::string& name, const error& why) {
  std::erase_if(greeted_, [&](const auto& entry) { return entry.second->name == name; });
  std::vector<pending_request> failed;
  std::vector<lookup> unanswered;
  {
    const std::scoped_lock lock(mutex_);
    for (auto it = pending_.begin(); it != pending_.end();) {
      if (it->second.node != name) {
        ++it;
        continue;
      }
      failed.push_back(std::move(it->second));
      it = pending_.erase(it);
    }
    for (auto it = lookups_.begin(); it != lookups_.end();) {
      if (it->second.first != name) {
        ++it;
        continue;
      }
      unanswered.push_back(std::move(it->second.second));
      it = lookups_.erase(it);
    }
  }
  for (auto& question : unanswered) question.set_value(tl::unexpected(why));
  fail_requests(failed, why);
  break_links(name, to_caf(why));
  const auto id = id_of(name);
  for (const auto& proxy : proxies_.get_all(id)) proxies_.erase(id, proxy->id(), to_caf(why));
  if (settings_.on_node_down) settings_.on_node_down(name, why);
}

void node::fail_requests(const std::vector<pending_request>& requests, const error& why) {
  for (const auto& request : requests)
    enqueue(request.sender, nullptr, request.mid.response_id(), caf::make_message(to_caf(why)));
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
