#pragma once

#include <caf/allowed_unsafe_message_type.hpp>
#include <caf/make_message.hpp>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

#include "messages/frame.hpp"

/// A message is declared once. Its type says in itself how it travels,
///
///     struct credit {
///       static constexpr auto declared = travels("credit", messages::lane::control);
///       ..
///     };
///
/// and its conversation's header ends with the list of all its messages. CAF takes the type from
/// then on, `message_registry::add` takes the list, and checks.hpp proves when it compiles that
/// lists and actor interfaces have the same messages.
namespace troupe::actors {

/// How a type of message travels.
struct declaration {
  std::string_view name;  ///< On the wire, unique, part of the protocol; empty: it stays here.
  messages::lane lane = messages::lane::data;
};

/// May go to other processes; its type lists its members to the wire (see wire/fields.hpp).
constexpr declaration travels(std::string_view name, messages::lane lane = messages::lane::data) {
  return {name, lane};
}

/// Between actors of one process: from a work thread to its actor, or beside it.
inline constexpr declaration stays_here{};

template <class T>
concept declared_message = std::same_as<std::remove_cvref_t<decltype(T::declared)>, declaration>;

/// The messages of a conversation.
template <declared_message... Messages>
struct message_list {};

}  // namespace troupe::actors

namespace caf {

/// Tensors and handles in messages are shared, not serialized: ours travel by message_registry.
template <troupe::actors::declared_message T>
struct allowed_unsafe_message_type<T> : std::true_type {};

namespace detail {

/// What holds a message. CAF's own holds any number of elements, and chooses among eleven in all
/// that can be done with one: compiling those choices took more than half of what a list of
/// messages takes. Ours are one element, which CAF neither serializes nor prints.
template <class Base, troupe::actors::declared_message T>
class tuple_vals_impl<Base, T> : public Base {
 public:
  using data_type = std::tuple<T>;
  using Base::copy;

  tuple_vals_impl(const tuple_vals_impl&) = default;

  template <class... Us>
  tuple_vals_impl(Us&&... us) : data_(std::forward<Us>(us)...) {}

  data_type& data() { return data_; }
  const data_type& data() const { return data_; }

  std::size_t size() const noexcept override { return 1; }
  std::uint32_t type_token() const noexcept override { return make_type_token<T>(); }
  rtti_pair type(std::size_t) const noexcept override { return make_rtti_pair<T>(); }
  const void* get(std::size_t) const noexcept override { return &std::get<0>(data_); }
  void* get_mutable(std::size_t) override { return &std::get<0>(data_); }
  type_erased_value_ptr copy(std::size_t) const override {
    return make_type_erased_value<T>(std::get<0>(data_));
  }
  std::string stringify(std::size_t) const override { return "<unprintable>"; }
  error load(std::size_t, deserializer&) override { return none; }
  error save(std::size_t, serializer&) const override { return none; }

 private:
  data_type data_;
};

}  // namespace detail
}  // namespace caf
