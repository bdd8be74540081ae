#pragma once

#include <caf/allowed_unsafe_message_type.hpp>
#include <concepts>
#include <string_view>
#include <type_traits>

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

}  // namespace caf
