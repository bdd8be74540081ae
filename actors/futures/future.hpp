#pragma once

#include <chrono>
#include <concepts>
#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "actors/futures/future_base.hpp"
#include "messages/base/error.hpp"

namespace troupe::actors {

template <class T>
class future;

namespace detail {

template <class T>
struct unwrapped {
  using type = T;
};
template <class T>
struct unwrapped<result<T>> {
  using type = T;
};

template <class F, class T>
struct call_result : std::invoke_result<F&, const T&> {};
template <class F>
struct call_result<F, void> : std::invoke_result<F&> {};

/// What `future<T>::then(F)` leads to.
template <class F, class T>
using next_value = typename unwrapped<std::remove_cvref_t<typename call_result<F, T>::type>>::type;

/// Calls `f` and makes a result of whatever it returns or throws.
template <class R, class F, class... Args>
result<R> call(F& f, Args&&... args) noexcept try {
  if constexpr (std::is_void_v<std::invoke_result_t<F&, Args...>>) {
    std::invoke(f, std::forward<Args>(args)...);
    return result<R>();
  } else {
    return std::invoke(f, std::forward<Args>(args)...);
  }
} catch (const std::exception& problem) {
  return fail(errc::handler_failed, problem.what());
} catch (...) {
  return fail(errc::handler_failed, "something that is no std::exception was thrown");
}

}  // namespace detail

/// A future_base with its value.
template <class T>
class future_state : public future_base {
 public:
  /// False when somebody was faster. The caller holds a reference.
  bool settle(result<T> value) {
    if (!claim()) return false;
    value_.emplace(std::move(value));
    publish();
    return true;
  }
  bool settle_error(error why) final { return settle(tl::unexpected(std::move(why))); }

  /// Once it is ready; never changes then.
  [[nodiscard]] const result<T>& value() const { return *value_; }

 private:
  std::optional<result<T>> value_;
};

/// The handle of work under way, here or in another process: a value or an error comes, exactly
/// one, exactly once, and never neither (whoever owes it and goes away leaves an error). Copies are
/// handles of the same work; the value is shared between them and `get` copies it, so `T` is
/// copyable (a tensor's copy is a reference). Safe from any thread.
///
/// Continuations run in the thread that settles the future (the responder's, the link's, a pool's,
/// a timer's), or at once in the caller's if it is settled; there they must not block. In order of
/// attachment. What they throw becomes errc::handler_failed of the future they lead to.
template <class T>
class [[nodiscard]] future {
 public:
  using value_type = T;

  /// A handle of nothing, until something is assigned to it; everything below needs something.
  future() = default;
  explicit future(reference<future_state<T>> state) : state_(std::move(state)) {}

  [[nodiscard]] bool ready() const noexcept { return state_->ready(); }

  /// Waits for the outcome. In a thread of a pool, or for work that was forked onto one, the caller
  /// works meanwhile (see pool.hpp). Errors: timed_out when `timeout` passes first, after which the
  /// future is as it was; and those of the work.
  result<T> get(std::chrono::nanoseconds timeout) const {
    const auto now = future_base::clock::now();
    const auto longest = future_base::clock::time_point::max() - now;
    const auto deadline = timeout < longest ? now + timeout : future_base::clock::time_point::max();
    if (state_->wait_until(deadline)) return state_->value();
    return fail(errc::timed_out, "a future had no outcome after " +
                                     std::to_string(timeout.count() / 1'000'000) + " ms");
  }
  /// Waits as long as it takes; the work has a deadline of its own, or ends.
  result<T> get() const {
    state_->wait_until(future_base::clock::time_point::max());
    return state_->value();
  }

  /// `f(value)` (`f()` for void) when the value comes; its T, result<T> or void is the outcome of
  /// the future returned. An error skips it. Cancelling what is returned keeps `f` from being
  /// called and leaves this future alone.
  template <class F>
  auto then(F f) const -> future<detail::next_value<F, T>>;

  /// `f(error)` when an error comes. If it returns nothing, the error goes on; its T or result<T>
  /// takes the error's place.
  template <class F>
  auto on_error(F f) const -> future<T>;

  /// `f(const result<T>&)` when the outcome comes, whatever it is. Must not throw.
  template <class F>
  void when_settled(F f) const;

  /// Settles it with errc::cancelled unless it is settled. Work not begun never begins; the outcome
  /// of work under way is dropped.
  void cancel() const { state_->settle_error({errc::cancelled, "the caller gave the request up"}); }

  [[nodiscard]] const reference<future_state<T>>& state() const noexcept { return state_; }

 private:
  reference<future_state<T>> state_;
};

/// The side that owes the outcome. Move-only; dropped without one it settles its future with
/// errc::handler_failed. Safe to hand to another thread.
template <class T>
class promise {
 public:
  promise() : state_(new future_state<T>) {}
  promise(promise&&) noexcept = default;
  promise& operator=(promise&& other) noexcept {
    promise taken(std::move(other));
    std::swap(state_, taken.state_);
    return *this;
  }
  ~promise() {
    if (state_)
      state_->settle_error({errc::handler_failed, "a promise was dropped before it was kept"});
  }

  [[nodiscard]] actors::future<T> future() const { return actors::future<T>(state_); }

  /// False when the future was settled before (cancelled, or set).
  bool set(result<T> value) { return state_->settle(std::move(value)); }
  bool set_error(error why) { return state_->settle_error(std::move(why)); }

 private:
  reference<future_state<T>> state_;
};

/// A future that is settled from the start.
template <class T>
[[nodiscard]] future<T> settled_future(result<T> value) {
  promise<T> made;
  made.set(std::move(value));
  return made.future();
}

namespace detail {

/// The state of a future that follows another, and its place in that one's list: one allocation.
template <class T, class R, class F>
class following : public future_state<R>, public continuation {
 public:
  explicit following(F f) : f_(std::move(f)) {}

 protected:
  F f_;
};

template <class T, class R, class F>
class then_state final : public following<T, R, F> {
 public:
  using following<T, R, F>::following;

  void settled(future_base& of) noexcept override {
    const auto& outcome = static_cast<future_state<T>&>(of).value();
    if (!outcome) {
      this->settle(tl::unexpected(outcome.error()));
    } else if (!this->ready()) {
      if constexpr (std::is_void_v<T>) {
        this->settle(call<R>(this->f_));
      } else {
        this->settle(call<R>(this->f_, *outcome));
      }
    }
    this->release();
  }
};

template <class T, class F>
class on_error_state final : public following<T, T, F> {
 public:
  using following<T, T, F>::following;

  void settled(future_base& of) noexcept override {
    const auto& outcome = static_cast<future_state<T>&>(of).value();
    if (outcome) {
      this->settle(outcome);
    } else if (!this->ready()) {
      this->settle(recover(outcome.error()));
    }
    this->release();
  }

 private:
  result<T> recover(const error& why) noexcept {
    if constexpr (std::is_void_v<std::invoke_result_t<F&, const error&>>) {
      const auto called = call<void>(this->f_, why);
      return tl::unexpected(called ? why : called.error());
    } else {
      return call<T>(this->f_, why);
    }
  }
};

template <class T, class F>
class when_settled_call final : public continuation {
 public:
  explicit when_settled_call(F f) : f_(std::move(f)) {}

  void settled(future_base& of) noexcept override {
    f_(static_cast<future_state<T>&>(of).value());
    delete this;
  }

 private:
  F f_;
};

template <class State, class T>
auto follow(const reference<future_state<T>>& source, State* next) {
  auto following = reference<State>::share(*next);  // the other reference is the list's
  source->attach(*next);
  return following;
}

}  // namespace detail

template <class T>
template <class F>
auto future<T>::then(F f) const -> future<detail::next_value<F, T>> {
  using R = detail::next_value<F, T>;
  const auto next = detail::follow(state_, new detail::then_state<T, R, F>(std::move(f)));
  return future<R>(reference<future_state<R>>::share(*next));
}

template <class T>
template <class F>
auto future<T>::on_error(F f) const -> future<T> {
  const auto next = detail::follow(state_, new detail::on_error_state<T, F>(std::move(f)));
  return future(reference<future_state<T>>::share(*next));
}

template <class T>
template <class F>
void future<T>::when_settled(F f) const {
  state_->attach(*new detail::when_settled_call<T, F>(std::move(f)));
}

}  // namespace troupe::actors
