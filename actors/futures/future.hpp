#pragma once

#include <chrono>
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

/// The value type of the future that `future<T>::then(F)` returns.
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

/// A future_base with a value.
template <class T>
class future_state : public future_base {
 public:
  /// Returns false if it was settled before. The caller holds a reference.
  bool settle(result<T> value) {
    if (!claim()) return false;
    value_.emplace(std::move(value));
    publish();
    return true;
  }
  bool settle_error(error why) final { return settle(tl::unexpected(std::move(why))); }

  /// Only once it is ready; it never changes after that.
  [[nodiscard]] const result<T>& value() const { return *value_; }

 private:
  std::optional<result<T>> value_;
};

/// The handle of work in progress, in this or another process. It gets exactly one outcome, a value
/// or an error, exactly once (if whoever owes the outcome goes away, that is an error). Copies are
/// handles of the same work; they share the value and `get` copies it, so `T` is copyable (a
/// tensor's copy is a reference). Safe from any thread.
///
/// Continuations run in the thread that settles the future (the responder's, the link's, a pool's,
/// a timer's), or immediately in the caller's if it is settled already; they must not block. They
/// run in the order of attachment. An exception that one throws becomes errc::handler_failed of the
/// future that it leads to.
template <class T>
class [[nodiscard]] future {
 public:
  using value_type = T;

  /// An empty handle; everything below requires that a future was assigned to it.
  future() = default;
  explicit future(reference<future_state<T>> state) : state_(std::move(state)) {}

  [[nodiscard]] bool ready() const noexcept { return state_->ready(); }

  /// Waits for the outcome. In a thread of a pool, or for work that was forked onto one, the caller
  /// works meanwhile (see pool.hpp). Errors: timed_out if `timeout` passes first, which leaves the
  /// future unchanged; and those of the work.
  result<T> get(std::chrono::nanoseconds timeout) const {
    const auto now = future_base::clock::now();
    const auto longest = future_base::clock::time_point::max() - now;
    const auto deadline = timeout < longest ? now + timeout : future_base::clock::time_point::max();
    if (state_->wait_until(deadline)) return state_->value();
    return fail(errc::timed_out, "a future had no outcome after " +
                                     std::to_string(timeout.count() / 1'000'000) + " ms");
  }
  /// Waits without a limit; the work has a deadline of its own, or ends.
  result<T> get() const {
    state_->wait_until(future_base::clock::time_point::max());
    return state_->value();
  }

  /// Calls `f(value)` (`f()` for void) when the value arrives; the T, result<T> or void that it
  /// returns is the outcome of the returned future. An error skips `f`. Cancelling the returned
  /// future keeps `f` from being called and leaves this future alone.
  template <class F>
  auto then(F f) const -> future<detail::next_value<F, T>>;

  /// Calls `f(error)` when an error arrives. If it returns nothing, the error is passed on; a T or
  /// result<T> that it returns replaces the error.
  template <class F>
  auto on_error(F f) const -> future<T>;

  /// Calls `f(const result<T>&)` when the outcome arrives, whatever it is. Must not throw.
  template <class F>
  void when_settled(F f) const;

  /// Settles it with errc::cancelled unless it is settled already. Work that has not begun never
  /// begins; the outcome of work in progress is dropped.
  void cancel() const { state_->settle_error({errc::cancelled, "the caller gave the request up"}); }

  [[nodiscard]] const reference<future_state<T>>& state() const noexcept { return state_; }

 private:
  reference<future_state<T>> state_;
};

/// The side that owes the outcome. Move-only; if it is destroyed without one, its future gets
/// errc::handler_failed. May be passed to another thread.
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

  /// False if the future was settled before (cancelled, or set).
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
