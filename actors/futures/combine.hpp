#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "actors/futures/future.hpp"

namespace troupe::actors {

namespace detail {

template <class T>
using or_nothing = std::conditional_t<std::is_void_v<T>, std::monostate, T>;

template <class T>
or_nothing<T> value_of(const future<T>& from) {
  if constexpr (std::is_void_v<T>) {
    return {};
  } else {
    return *from.state()->value();
  }
}

/// Counts down to the last of several futures.
template <class R>
class gathering final : public future_state<R> {
 public:
  explicit gathering(std::size_t count) : left_(count) {}
  [[nodiscard]] bool is_last() { return left_.fetch_sub(1, std::memory_order_acq_rel) == 1; }

 private:
  std::atomic<std::size_t> left_;
};

}  // namespace detail

/// All values, or the first error (as soon as it occurs; the others continue). In a tuple, void is
/// std::monostate.
template <class... Ts>
[[nodiscard]] auto all(const future<Ts>&... of) {
  using R = std::tuple<detail::or_nothing<Ts>...>;
  reference<detail::gathering<R>> made(new detail::gathering<R>(sizeof...(Ts)));
  const auto watch = [&](const auto& one) {
    one.when_settled([made, of...](const auto& outcome) {
      if (!outcome) {
        made->settle(tl::unexpected(outcome.error()));
      } else if (made->is_last()) {
        made->settle(R(detail::value_of(of)...));
      }
    });
  };
  (watch(of), ...);
  return future<R>(reference<future_state<R>>::share(*made));
}

/// All values in the order of `of`, or the first error (as soon as it occurs; the others continue).
template <class T>
[[nodiscard]] auto all(std::vector<future<T>> of) {
  using R = std::conditional_t<std::is_void_v<T>, void, std::vector<detail::or_nothing<T>>>;
  const auto collect = [](const std::vector<future<T>>& done) -> result<R> {
    if constexpr (std::is_void_v<T>) {
      return {};
    } else {
      R values;
      values.reserve(done.size());
      for (const auto& one : done) values.push_back(*one.state()->value());
      return values;
    }
  };
  if (of.empty()) return settled_future<R>(collect(of));
  reference<detail::gathering<R>> made(new detail::gathering<R>(of.size()));
  const auto inputs = std::make_shared<const std::vector<future<T>>>(std::move(of));
  for (const auto& one : *inputs) {
    one.when_settled([made, inputs, collect](const auto& outcome) {
      if (!outcome) {
        made->settle(tl::unexpected(outcome.error()));
      } else if (made->is_last()) {
        made->settle(collect(*inputs));
      }
    });
  }
  return future<R>(reference<future_state<R>>::share(*made));
}

/// The first value, or the last error if all have failed. Errors: bad_config if there are none.
template <class T>
[[nodiscard]] future<T> any(const std::vector<future<T>>& of) {
  if (of.empty())
    return settled_future<T>(fail(errc::bad_config, "any() was given no future to wait for"));
  reference<detail::gathering<T>> made(new detail::gathering<T>(of.size()));
  for (const auto& one : of) {
    one.when_settled([made](const result<T>& outcome) {
      if (outcome || made->is_last()) made->settle(outcome);
    });
  }
  return future<T>(reference<future_state<T>>::share(*made));
}

}  // namespace troupe::actors
