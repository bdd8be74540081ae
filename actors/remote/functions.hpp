#pragma once

#include <caf/actor_system.hpp>
#include <caf/mailbox_element.hpp>
#include <caf/message.hpp>
#include <caf/monitorable_actor.hpp>
#include <caf/type_erased_tuple.hpp>
#include <chrono>
#include <functional>
#include <map>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include "actors/base/errors.hpp"
#include "actors/futures/pool.hpp"
#include "actors/futures/requester.hpp"
#include "actors/wire/message_registry.hpp"
#include "messages/base/error.hpp"

namespace troupe::actors {

class node;

namespace detail {

template <class F>
struct signature : signature<decltype(&F::operator())> {};
template <class R, class... Args>
struct signature<R (*)(Args...)> {
  using result_type = R;
  using arguments = std::tuple<std::remove_cvref_t<Args>...>;
};
template <class C, class R, class... Args>
struct signature<R (C::*)(Args...) const> : signature<R (*)(Args...)> {};

}  // namespace detail

/// The functions that other nodes may fork here, by name. A value that `main` builds and passes in.
/// Arguments and results are types of the message registry (see wire/message_registry.hpp);
/// tensors are among them.
class function_registry {
 public:
  /// Adds a function (or a lambda with one call operator, not mutable) under a name. Its value, its
  /// result<T>, or errc::handler_failed with the text of what it throws, is the answer.
  template <class F>
  void add(const std::string& name, F function) {
    using arguments = typename detail::signature<F>::arguments;
    insert(name, [function = std::move(function), name](const caf::type_erased_tuple& call) {
      return invoke(function, name, call, static_cast<arguments*>(nullptr));
    });
  }

  /// Calls the function that a message names in its first element with the others.
  [[nodiscard]] caf::message call(const caf::type_erased_tuple& message) const;

 private:
  using entry = std::function<caf::message(const caf::type_erased_tuple&)>;

  void insert(const std::string& name, entry made);

  template <class F, class... Args>
  static caf::message invoke(const F& function, const std::string& name,
                             const caf::type_erased_tuple& call, const std::tuple<Args...>*) {
    if (!call.match_elements<std::string, Args...>())
      return caf::make_message(
          to_caf({errc::unknown_message,
                  "function '" + name + "' takes other arguments than " + call.stringify()}));
    return apply(function, call, std::index_sequence_for<Args...>(),
                 static_cast<std::tuple<Args...>*>(nullptr));
  }

  template <class F, std::size_t... I, class... Args>
  static caf::message apply(const F& function, const caf::type_erased_tuple& call,
                            std::index_sequence<I...>, const std::tuple<Args...>*) {
    using R = typename detail::unwrapped<typename detail::signature<F>::result_type>::type;
    const auto outcome = detail::call<R>(function, call.get_as<Args>(I + 1)...);
    if (!outcome) return caf::make_message(to_caf(outcome.error()));
    if constexpr (std::is_void_v<R>) {
      return {};
    } else {
      return caf::make_message(*outcome);
    }
  }

  std::map<std::string, entry, std::less<>> entries_;
};

/// The name under which a node publishes its function_host.
inline constexpr const char* function_host_name = "functions";

/// Runs the functions that other nodes fork here on a pool, and answers from its threads. An actor
/// without a mailbox: publish it as `function_host_name`. `functions` and `on` outlive the actor
/// system's last message; after `stop` every call is refused.
class function_host final : public caf::monitorable_actor {
 public:
  function_host(caf::actor_config& config, const function_registry& functions, pool& on)
      : caf::monitorable_actor(config), functions_(functions), on_(on) {}

  [[nodiscard]] static caf::strong_actor_ptr make(caf::actor_system& system,
                                                  const function_registry& functions, pool& on);

  void enqueue(caf::mailbox_element_ptr what, caf::execution_unit* unit) override;

 private:
  const function_registry& functions_;
  pool& on_;
};

/// A handle of another node's pool, for `fork_on`. Copyable; `ask` outlives it.
class remote_pool {
 public:
  remote_pool(requester& ask, caf::strong_actor_ptr host, std::chrono::nanoseconds deadline)
      : ask_(&ask), host_(std::move(host)), deadline_(deadline) {}

  /// Finds the host that `where` published; its calls have `deadline` each. Errors: peer_lost,
  /// unknown_target, timed_out.
  [[nodiscard]] static result<remote_pool> at(node& here, const std::string& where, requester& ask,
                                              std::chrono::milliseconds deadline);

 private:
  template <class R, class... Args>
  friend future<R> fork_on(const remote_pool&, const std::string&, Args...);

  requester* ask_;
  caf::strong_actor_ptr host_;
  std::chrono::nanoseconds deadline_;
};

/// Starts a function on another node's pool by its name there. The future is as that of a request;
/// what the function throws is errc::handler_failed with its text, a name or arguments that do not
/// fit are errc::unknown_target and unknown_message. Autograd does not record across nodes.
template <class R, class... Args>
[[nodiscard]] future<R> fork_on(const remote_pool& where, const std::string& function,
                                Args... args) {
  return where.ask_->request<R>(where.host_, caf::make_message(function, std::move(args)...),
                                where.deadline_);
}

}  // namespace troupe::actors
