#pragma once

#include <caf/typed_actor.hpp>
#include <concepts>
#include <cstddef>
#include <string_view>
#include <type_traits>

#include "actors/messages/declaration.hpp"

/// What is proved of messages when they compile: that lists and interfaces have the same ones.
namespace troupe::actors {

template <class... Lists>
struct joined_lists {
  using type = message_list<>;
};

template <class... Messages>
struct joined_lists<message_list<Messages...>> {
  using type = message_list<Messages...>;
};

template <class... Some, class... Others, class... More>
struct joined_lists<message_list<Some...>, message_list<Others...>, More...> {
  using type = typename joined_lists<message_list<Some..., Others...>, More...>::type;
};

/// All messages of several lists.
template <class... Lists>
using join_lists = typename joined_lists<Lists...>::type;

template <class T, class... Messages>
constexpr std::size_t times_in(message_list<Messages...> /*list*/) {
  return (std::size_t{std::same_as<T, Messages>} + ... + 0);
}

/// Every message is listed once, and no two have the same name.
template <class... Messages>
constexpr bool are_distinct(message_list<Messages...> list) {
  constexpr std::string_view names[] = {Messages::declared.name..., ""};
  for (std::size_t i = 0; i < sizeof...(Messages); ++i)
    for (std::size_t j = 0; j < i; ++j)
      if (!names[i].empty() && names[i] == names[j]) return false;
  return ((times_in<Messages>(list) == 1) && ...);
}

/// A signature of an interface: what it takes and, unless void, answers.
template <class Signature>
struct signature;

template <class... In, class... Out>
struct signature<caf::typed_mpi<caf::detail::type_list<In...>, caf::output_tuple<Out...>>> {
  template <class List>
  static constexpr bool is_listed(List list) {
    return ((times_in<In>(list) > 0) && ...) &&
           ((std::is_void_v<Out> || times_in<Out>(list) > 0) && ...);
  }
  template <class T>
  static constexpr bool has = (std::same_as<T, In> || ...) || (std::same_as<T, Out> || ...);
};

template <class Interface>
struct interface_messages;

template <class... Signatures>
struct interface_messages<caf::typed_actor<Signatures...>> {
  /// All that the interface takes and answers is in the list.
  template <class List>
  static constexpr bool are_listed(List list) {
    return (signature<Signatures>::is_listed(list) && ...);
  }
  template <class T>
  static constexpr bool has = (signature<Signatures>::template has<T> || ...);
};

/// Typed actors.
template <class... Interfaces>
struct interface_list {};

/// All that these actors take and answer is in the list.
template <class... Interfaces, class List>
constexpr bool are_listed(interface_list<Interfaces...> /*actors*/, List list) {
  return (interface_messages<Interfaces>::are_listed(list) && ...);
}

/// Some of these actors takes or answers each message of the list.
template <class... Interfaces, class... Messages>
constexpr bool are_used(interface_list<Interfaces...> /*actors*/,
                        message_list<Messages...> /*all*/) {
  const auto is_used = []<class T>(std::type_identity<T>) {
    return (interface_messages<Interfaces>::template has<T> || ...);
  };
  return (is_used(std::type_identity<Messages>{}) && ...);
}

}  // namespace troupe::actors
