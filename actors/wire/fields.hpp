#pragma once

#include <ATen/core/Tensor.h>

#include <caf/actor_cast.hpp>
#include <caf/actor_control_block.hpp>
#include <caf/is_typed_actor.hpp>
#include <caf/typed_actor.hpp>
#include <concepts>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "actors/wire/tensors.hpp"
#include "messages/base/ids.hpp"
#include "messages/frame.hpp"

namespace troupe::actors {

/// Turns actor handles into addresses that mean something in another process, and back.
class actor_directory {
 public:
  virtual ~actor_directory() = default;
  [[nodiscard]] virtual messages::actor_ref address_of(const caf::strong_actor_ptr& actor) = 0;
  [[nodiscard]] virtual caf::strong_actor_ptr resolve(const messages::actor_ref& address) = 0;
};

/// A message type that can travel: it lists its members to a writer or a reader,
///   static void fields(auto& self, auto& f) { f(self.a); }
template <class T, class Fields>
concept has_fields = requires(T& object, Fields& fields) {
  T::fields(object, fields);
};

/// A message type whose tensors nobody writes at their receiver, so that lent ones need no copy.
template <class T>
concept only_reads_tensors = requires {
  requires T::tensors_are_only_read;
};

template <class T>
concept actor_handle = std::same_as<T, caf::strong_actor_ptr> || std::same_as<T, caf::actor> ||
    caf::is_typed_actor<T>::value;

namespace detail {
template <class T, template <class...> class Of>
inline constexpr bool is_a = false;
template <template <class...> class Of, class... Ts>
inline constexpr bool is_a<Of<Ts...>, Of> = true;
}  // namespace detail

/// Appends members as wire values; tensors join the frame's list and stay where they are.
class field_writer {
 public:
  field_writer(messages::value::list& out, std::vector<messages::wire_tensor>& tensors,
               actor_directory& directory)
      : out_(out), tensors_(tensors), directory_(directory) {}

  template <class... Ts>
  void operator()(const Ts&... members) {
    if (out_.empty()) out_.reserve(sizeof...(members));  // most messages list all at once
    (out_.push_back(to_value(members)), ...);
  }

 private:
  template <class T>
  messages::value to_value(const T& member) {
    using messages::value;
    if constexpr (std::is_integral_v<T> || std::is_enum_v<T>) {
      return {static_cast<std::int64_t>(member)};
    } else if constexpr (std::is_floating_point_v<T>) {
      return {static_cast<double>(member)};
    } else if constexpr (std::same_as<T, std::string>) {
      return {member};
    } else if constexpr (detail::is_a<T, strong_id>) {
      return {static_cast<std::int64_t>(member.value)};
    } else if constexpr (std::same_as<T, at::Tensor>) {
      if (!member.defined()) return {};
      tensors_.push_back(to_wire(member));
      return {value::tensor_index{static_cast<std::uint32_t>(tensors_.size() - 1)}};
    } else if constexpr (actor_handle<T>) {
      if (!member) return {};
      return {directory_.address_of(caf::actor_cast<caf::strong_actor_ptr>(member))};
    } else {
      return {to_list(member)};
    }
  }

  template <class T>
  messages::value::list to_list(const T& member) {
    messages::value::list items;
    field_writer nested(items, tensors_, directory_);
    if constexpr (detail::is_a<T, std::optional>) {
      if (member) nested(*member);
    } else if constexpr (detail::is_a<T, std::vector>) {
      items.reserve(member.size());
      for (const auto& item : member) nested(item);
    } else if constexpr (detail::is_a<T, std::map>) {
      for (const auto& [key, item] : member) nested(key, item);
    } else {
      static_assert(has_fields<const T, field_writer>, "a message member needs fields()");
      T::fields(member, nested);
    }
    return items;
  }

  messages::value::list& out_;
  std::vector<messages::wire_tensor>& tensors_;
  actor_directory& directory_;
};

/// Fills members from wire values in the order they were written. After a value of the wrong type,
/// or a missing or surplus one, `ok()` is false and the members are not to be used.
class field_reader {
 public:
  field_reader(const messages::value::list& in, const std::vector<messages::wire_tensor>& tensors,
               actor_directory& directory, lent how = lent::copied)
      : in_(in), tensors_(tensors), directory_(directory), how_(how) {}

  template <class... Ts>
  void operator()(Ts&... members) {
    (read(members), ...);
  }

  [[nodiscard]] bool ok() const noexcept { return ok_ && next_ == in_.size(); }

 private:
  template <class T>
  const T* take() {
    if (next_ >= in_.size()) return nullptr;
    return std::get_if<T>(&in_[next_++].of);
  }

  template <class Wire, class Store>
  void take_into(Store store) {
    if (const auto* found = take<Wire>()) {
      store(*found);
    } else {
      ok_ = false;
    }
  }

  template <class T>
  void read(T& member) {
    using messages::value;
    if constexpr (std::is_integral_v<T> || std::is_enum_v<T>) {
      take_into<std::int64_t>([&](std::int64_t x) {
        member = static_cast<T>(x);
        ok_ = ok_ && static_cast<std::int64_t>(member) == x;
      });
    } else if constexpr (std::is_floating_point_v<T>) {
      take_into<double>([&](double x) { member = static_cast<T>(x); });
    } else if constexpr (std::same_as<T, std::string>) {
      take_into<std::string>([&](const std::string& x) { member = x; });
    } else if constexpr (detail::is_a<T, strong_id>) {
      take_into<std::int64_t>(
          [&](std::int64_t x) { member.value = static_cast<decltype(member.value)>(x); });
    } else if constexpr (std::same_as<T, at::Tensor>) {
      if (skip_nothing()) return;
      take_into<value::tensor_index>([&](value::tensor_index x) {
        x.index < tensors_.size() ? void(member = from_wire(tensors_[x.index], how_))
                                  : void(ok_ = false);
      });
    } else if constexpr (actor_handle<T>) {
      if (skip_nothing()) return;
      take_into<messages::actor_ref>([&](const messages::actor_ref& x) {
        member = caf::actor_cast<T>(directory_.resolve(x));
      });
    } else {
      take_into<value::list>([&](const value::list& x) { read_list(member, x); });
    }
  }

  template <class T>
  void read_list(T& member, const messages::value::list& items) {
    field_reader nested(items, tensors_, directory_, how_);
    if constexpr (detail::is_a<T, std::optional>) {
      if (!items.empty()) nested(member.emplace());
    } else if constexpr (detail::is_a<T, std::vector>) {
      member.resize(items.size());
      for (auto& item : member) nested(item);
    } else if constexpr (detail::is_a<T, std::map>) {
      for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
        std::string key;
        nested(key);
        nested(member[key]);
      }
    } else {
      static_assert(has_fields<T, field_reader>, "a message member needs fields()");
      T::fields(member, nested);
    }
    ok_ = ok_ && nested.ok();
  }

  /// Consumes an absent tensor or actor.
  bool skip_nothing() {
    const bool nothing =
        next_ < in_.size() && std::holds_alternative<std::monostate>(in_[next_].of);
    if (nothing) ++next_;
    return nothing;
  }

  const messages::value::list& in_;
  const std::vector<messages::wire_tensor>& tensors_;
  actor_directory& directory_;
  const lent how_;
  std::size_t next_ = 0;
  bool ok_ = true;
};

}  // namespace troupe::actors
