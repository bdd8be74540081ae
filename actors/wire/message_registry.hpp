#pragma once

#include <ATen/core/Tensor.h>

#include <caf/allowed_unsafe_message_type.hpp>
#include <caf/message.hpp>
#include <caf/rtti_pair.hpp>
#include <caf/type_erased_tuple.hpp>
#include <map>
#include <string>
#include <typeindex>
#include <unordered_map>
#include <utility>

#include "actors/messages/declaration.hpp"
#include "actors/wire/fields.hpp"
#include "messages/base/error.hpp"
#include "messages/frame.hpp"

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(at::Tensor)

namespace troupe::actors {

/// Which C++ types may travel between processes, and under which name. A value that `main` builds
/// and passes in; the same on every node. Read-only once nodes use it, so safe to share.
class message_registry {
 public:
  /// Starts with strings, numbers, booleans, tensors and CAF's own error, exit and down messages.
  message_registry();
  message_registry(message_registry&&) = default;
  message_registry& operator=(message_registry&&) = default;

  /// Makes `T` a type that can be sent. `T` is default-constructible and has `fields`, unless it is
  /// empty (see has_fields, only_reads_tensors); `name` is unique and part of the protocol. On the
  /// control lane a message overtakes those of the data lane, also from the same sender to the same
  /// receiver.
  template <class T>
  void add(const std::string& name, messages::lane lane = messages::lane::data) {
    insert(caf::make_rtti_pair<T>(), {name, lane,
                                      [](const void* object, field_writer& out) {
                                        write(*static_cast<const T*>(object), out);
                                      },
                                      [](field_reader& in) {
                                        T object{};
                                        read(object, in);
                                        return caf::make_message(std::move(object));
                                      },
                                      only_reads_tensors<T> ? lent::kept : lent::copied});
  }

  /// Makes every message of a conversation that travels one that can be sent.
  template <class... Messages>
  void add(message_list<Messages...> /*all*/) {
    (add_declared<Messages>(), ...);
  }

  /// Fills lane, body and tensors of `out` from a message's elements. Errors: unknown_message
  /// naming a type that was not added; handler_failed for a tensor that cannot be sent.
  [[nodiscard]] result<void> encode(const caf::type_erased_tuple& content, messages::frame& out,
                                    actor_directory& directory) const;

  /// Errors: unknown_message for a name that was not added, bad_frame for fields that do not fit.
  [[nodiscard]] result<caf::message> decode(const messages::frame& in,
                                            actor_directory& directory) const;

 private:
  template <class T>
  void add_declared() {
    if constexpr (!T::declared.name.empty())
      add<T>(std::string(T::declared.name), T::declared.lane);
  }

  struct codec {
    std::string name;
    messages::lane lane = messages::lane::data;
    void (*encode)(const void*, field_writer&);
    caf::message (*decode)(field_reader&);  // to be used if the reader is ok
    lent how = lent::copied;
  };
  using key = std::pair<std::uint16_t, std::type_index>;

  static key key_of(caf::rtti_pair type);
  void insert(caf::rtti_pair type, codec entry);
  [[nodiscard]] const codec* codec_of(caf::rtti_pair type) const;

  template <class T>
  static void write(const T& object, field_writer& out) {
    if constexpr (has_fields<const T, field_writer>) {
      T::fields(object, out);
    } else if constexpr (!std::is_empty_v<T>) {
      out(object);
    }
  }

  template <class T>
  static void read(T& object, field_reader& in) {
    if constexpr (has_fields<T, field_reader>) {
      T::fields(object, in);
    } else if constexpr (!std::is_empty_v<T>) {
      in(object);
    }
  }

  std::map<key, codec> by_type_;
  std::unordered_map<const std::type_info*, const codec*> by_address_;  // into by_type_
  std::unordered_map<std::string, codec> by_name_;
};

}  // namespace troupe::actors
