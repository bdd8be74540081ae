#include "actors/remote/functions.hpp"

#include <caf/actor_config.hpp>
#include <caf/make_actor.hpp>
#include <stdexcept>

#include "actors/remote/node.hpp"

namespace troupe::actors {

void function_registry::insert(const std::string& name, entry made) {
  if (!entries_.emplace(name, std::move(made)).second)
    throw std::logic_error("function '" + name + "' was added twice");
}

caf::message function_registry::call(const caf::type_erased_tuple& message) const {
  const bool named = !message.empty() && message.match_element<std::string>(0);
  const auto name = named ? message.get_as<std::string>(0) : "";
  const auto found = entries_.find(name);
  if (found == entries_.end())
    return caf::make_message(to_caf(
        {errc::unknown_target, "no function '" + name + "' was added to the function registry"}));
  return found->second(message);
}

caf::strong_actor_ptr function_host::make(caf::actor_system& system,
                                          const function_registry& functions, pool& on) {
  caf::actor_config config;
  return caf::make_actor<function_host, caf::strong_actor_ptr>(
      system.next_actor_id(), system.node(), &system, config, functions, on);
}

void function_host::enqueue(caf::mailbox_element_ptr what, caf::execution_unit*) {
  const std::shared_ptr<caf::mailbox_element> call(what.release(), caf::detail::disposer{});
  auto outcome = on_.fork([this, call] { return functions_.call(call->content()); });
  if (!call->sender || !call->mid.is_request()) return;
  outcome.when_settled(
      [self = caf::strong_actor_ptr(ctrl()), call](const result<caf::message>& answer) {
        call->sender->get()->enqueue(self, call->mid.response_id(),
                                     answer ? *answer : caf::make_message(to_caf(answer.error())),
                                     nullptr);
      });
}

result<remote_pool> remote_pool::at(node& here, const std::string& where, requester& ask,
                                    std::chrono::milliseconds deadline) {
  auto host = here.find(where, function_host_name, deadline);
  if (!host) return tl::unexpected(host.error());
  return remote_pool(ask, std::move(*host), deadline);
}

}  // namespace troupe::actors
