#include "actors/futures/request_inbox.hpp"

#include <caf/actor_control_block.hpp>
#include <caf/actor_registry.hpp>
#include <caf/atom.hpp>
#include <caf/make_actor.hpp>
#include <mutex>

#include "actors/base/errors.hpp"

namespace troupe::actors {
namespace {

/// An actor's request to one of another process.
class relayed final : public unanswered {
 public:
  relayed(caf::strong_actor_ptr sender, caf::message_id mid)
      : sender_(std::move(sender)), mid_(mid) {}

  void answered(caf::mailbox_element& answer) noexcept override {
    pass_on(std::move(answer.sender), answer.move_content_to_message());
  }
  void answered(caf::message answer) noexcept override { pass_on(nullptr, std::move(answer)); }
  void failed(const error& why) noexcept override {
    pass_on(nullptr, caf::make_message(to_caf(why)));
  }

 private:
  void pass_on(caf::strong_actor_ptr by, caf::message what) {
    sender_->get()->enqueue(std::move(by), mid_.response_id(), std::move(what), nullptr);
    delete this;
  }

  const caf::strong_actor_ptr sender_;
  const caf::message_id mid_;
};

}  // namespace

request_inbox::request_inbox(caf::actor_config& config)
    : caf::monitorable_actor(config), table_([](unanswered* late) {
        late->failed({errc::timed_out, "was not answered by its deadline"});
      }) {}

request_inbox::~request_inbox() {
  table_.stop();
  table_.take_all([](unanswered* open) {
    open->failed({errc::cancelled, "was given up: its actor system has ended"});
  });
}

caf::strong_actor_ptr request_inbox::of(caf::actor_system& system) {
  static std::mutex first_call;
  const auto name = caf::atom("requests");
  const std::scoped_lock lock(first_call);
  if (auto found = system.registry().get<caf::strong_actor_ptr>(name)) return found;
  caf::actor_config config;
  auto made = caf::make_actor<request_inbox, caf::strong_actor_ptr>(system.next_actor_id(),
                                                                    system.node(), &system, config);
  system.registry().put(name, made);
  return made;
}

void request_inbox::enqueue(caf::mailbox_element_ptr what, caf::execution_unit*) {
  if (!what->mid.is_response()) return;  // nobody asks a requester anything
  if (auto* const request = table_.take(what->mid.request_id().integer_value()))
    request->answered(*what);
}

void request_inbox::answer(caf::message_id number, caf::message content) {
  if (!number.is_response()) return;
  if (auto* const request = table_.take(number.request_id().integer_value()))
    request->answered(std::move(content));
}

caf::message_id request_inbox::relay(const caf::strong_actor_ptr& sender, caf::message_id mid,
                                     caf::abstract_actor& target) {
  const auto number = put(*new relayed(sender, mid), 0, target, clock::time_point::max());
  return caf::message_id{number}.with_category(mid.category());
}

std::uint64_t request_inbox::put(unanswered& request, owner whose, caf::abstract_actor& target,
                                 clock::time_point deadline) {
  const auto number = table_.put(&request, tag_of(target), deadline, whose);
  if (number == 0) {
    request.failed({errc::cancelled, "too many requests are outstanding"});
  } else {
    watch(target);
  }
  return number;
}

request_inbox::owner request_inbox::enlist(node_names names) {
  const std::scoped_lock lock(names_mutex_);
  names_.emplace(++last_owner_, std::move(names));
  return last_owner_;
}

void request_inbox::give_up(owner whose) {
  table_.take_owned(whose, [](unanswered* open) {
    open->failed({errc::cancelled, "was given up: its requester has ended"});
  });
  const std::scoped_lock lock(names_mutex_);
  names_.erase(whose);
}

std::string request_inbox::name_of(owner whose, const caf::node_id& node) const {
  const std::scoped_lock lock(names_mutex_);
  const auto names = names_.find(whose);
  return names != names_.end() && names->second && node ? names->second(node) : std::string();
}

const caf::node_id& request_inbox::kept(const caf::node_id& node) {
  const auto* const last = last_kept_.load(std::memory_order_acquire);
  if (last != nullptr && *last == node) return *last;
  const std::scoped_lock lock(names_mutex_);
  const auto& found = *node_ids_.insert(node).first;
  last_kept_.store(&found, std::memory_order_release);
  return found;
}

std::uint64_t request_inbox::time_left_us(caf::message_id number) const {
  const auto deadline = table_.deadline_of(number.request_id().integer_value());
  if (deadline == clock::time_point::max()) return 0;
  const auto left =
      std::chrono::duration_cast<std::chrono::microseconds>(deadline - clock::now()).count();
  return static_cast<std::uint64_t>(std::max<std::int64_t>(left, 1));
}

void request_inbox::watch(caf::abstract_actor& target) {
  const auto tag = tag_of(target);
  if (!watched_.add(tag)) return;
  target.attach_functor([self = caf::strong_actor_ptr(ctrl()), this,
                         tag](const caf::error& reason) { ended(tag, reason); });
}

void request_inbox::ended(table::tag target, const caf::error& reason) {
  watched_.remove(target);
  const auto why = reason ? from_caf(reason) : error{errc::unknown_target, "the actor has ended"};
  table_.take_tagged(target, [&](unanswered* open) { open->failed(why); });
}

}  // namespace troupe::actors
