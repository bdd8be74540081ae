#include "cluster/launch/agents/agent_messages.hpp"

#include <array>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <optional>
#include <type_traits>
#include <utility>

namespace troupe::cluster {

// In a line members are called as they are here. Messages without any need none of this.
namespace orders {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(begin, silence_ms)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(start, name, arguments, environment, working_folder, secret)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(kill, name)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(end, grace_ms)

}  // namespace orders

namespace events {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(hello, protocol, build, host, cores, memory_bytes, clock_ns,
                                   addresses)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(started, name)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(refused, name, why)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(ended, name, pid, code, signal, lacked_memory)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(signalled, signal)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(ends, why)

inline void to_json(nlohmann::json& to, const line& what) {
  to = {{"name", what.name}, {"err", what.stream == output_stream::err}, {"text", what.text}};
}

inline void from_json(const nlohmann::json& from, line& what) {
  from.at("name").get_to(what.name);
  what.stream = from.at("err").get<bool>() ? output_stream::err : output_stream::out;
  from.at("text").get_to(what.text);
}

}  // namespace events

namespace {

using nlohmann::json;

template <class Message>
using message_words = std::array<const char*, std::variant_size_v<Message>>;

// What a line calls each alternative: its member "is".
constexpr message_words<agent_order> order_words{"begin",  "start", "kill", "suspend",
                                                 "resume", "alive", "end"};
constexpr message_words<agent_event> event_words{
    "hello", "started", "refused", "line", "ended", "alive", "asked_to_end", "signalled", "ends"};

template <class Message>
std::string encode_as(const message_words<Message>& words, const Message& message) {
  auto line = std::visit(
      []<class Alternative>([[maybe_unused]] const Alternative& what) {
        if constexpr (std::is_empty_v<Alternative>)
          return json::object();
        else
          return json(what);
      },
      message);
  line["is"] = words[message.index()];
  return line.dump(-1, ' ', false, json::error_handler_t::replace);
}

/// Whether a line says each number of this message, by `says(as it came, as it is here)`.
template <class Says>
bool says_numbers(const json& line, const json& message, Says says) {
  for (const auto& [name, number] : message.items())
    if (number.is_number() && !says(line.at(name), number)) return false;
  return true;
}

/// nlohmann casts a number to its member whatever it is: what was changed by that is refused, and a
/// fraction before it, for which the cast may be undefined.
template <class Message, class Alternative>
std::optional<Message> message_with([[maybe_unused]] const json& line) {
  if constexpr (std::is_empty_v<Alternative>) {
    return Alternative();
  } else {
    const auto is_whole = [](const json& came, const json&) { return came.is_number_integer(); };
    const auto is_same = [](const json& came, const json& is) { return came.dump() == is.dump(); };
    if (!says_numbers(line, json(Alternative()), is_whole)) return std::nullopt;
    auto read = line.get<Alternative>();
    if (!says_numbers(line, json(read), is_same)) return std::nullopt;
    return read;
  }
}

template <class Message, std::size_t... At>
std::optional<Message> message_of(const message_words<Message>& words, const json& what,
                                  std::index_sequence<At...>) {
  const auto is = what.at("is").get<std::string>();
  std::optional<Message> found;
  ((is == words[At]
        ? void(found = message_with<Message, std::variant_alternative_t<At, Message>>(what))
        : void()),
   ...);
  return found;
}

template <class Message>
result<Message> decode_as(const message_words<Message>& words, std::string_view line,
                          const char* kind) {
  json what = json::parse(line, nullptr, false);
  try {
    what.emplace("clock_ns", 0);  // which the `hello` of another build may lack
    what.emplace("addresses", json::array());
    constexpr auto all = std::make_index_sequence<std::variant_size_v<Message>>();
    if (auto message = message_of<Message>(words, what, all)) return std::move(*message);
  } catch (const json::exception&) {  // it is no object, or a member is missing or of another kind
  }
  return fail(errc::bad_frame, std::string("a line that is no ") + kind);
}

}  // namespace

std::string encode(const agent_order& order) {
  return encode_as(order_words, order);
}

std::string encode(const agent_event& event) {
  return encode_as(event_words, event);
}

result<agent_order> decode_order(std::string_view line) {
  return decode_as<agent_order>(order_words, line, "order");
}

result<agent_event> decode_event(std::string_view line) {
  return decode_as<agent_event>(event_words, line, "event");
}

std::string magic_line() {
  return std::string(agent_magic) + " " + std::to_string(agent_protocol_version);
}

}  // namespace troupe::cluster
