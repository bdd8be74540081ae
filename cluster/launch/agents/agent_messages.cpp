#include "cluster/launch/agents/agent_messages.hpp"

#include <nlohmann/json.hpp>
#include <optional>

namespace troupe::cluster {
namespace {

using nlohmann::json;

template <class... Cases>
struct overloaded : Cases... {
  using Cases::operator()...;
};
template <class... Cases>
overloaded(Cases...) -> overloaded<Cases...>;  // clang 14 does not deduce it

std::string text_of(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

// Reads one message; `what` is its object.
template <class Message, class Read>
result<Message> decode(std::string_view line, const char* kind, const Read& read) {
  const auto refuse = [&kind] {
    return fail(errc::bad_frame, std::string("a line that is no ") + kind);
  };
  const json what = json::parse(line, nullptr, false);
  if (!what.is_object() || !what.contains("is") || !what["is"].is_string()) return refuse();
  try {
    if (auto message = read(what["is"].get<std::string>(), what)) return std::move(*message);
  } catch (const json::exception&) {  // a member is missing or of another kind
  }
  return refuse();
}

std::optional<agent_order> order_of(const std::string& is, const json& what) {
  if (is == "alive") return orders::alive{};
  if (is == "begin") return orders::begin{what.at("silence_ms").get<std::uint64_t>()};
  if (is == "start")
    return orders::start{
        what.at("name").get<std::string>(), what.at("arguments").get<std::vector<std::string>>(),
        what.at("environment").get<std::map<std::string, std::string>>(),
        what.at("working_folder").get<std::string>(), what.at("secret").get<std::string>()};
  if (is == "kill") return orders::kill{what.at("name").get<std::string>()};
  if (is == "suspend") return orders::suspend{};
  if (is == "resume") return orders::resume{};
  if (is == "end") return orders::end{what.at("grace_ms").get<std::uint64_t>()};
  return std::nullopt;
}

std::optional<agent_event> event_of(const std::string& is, const json& what) {
  const auto name = [&what] { return what.at("name").get<std::string>(); };
  if (is == "alive") return events::alive{};
  if (is == "asked_to_end") return events::asked_to_end{};
  if (is == "hello")
    return events::hello{what.at("protocol").get<std::uint32_t>(),
                         what.at("build").get<std::string>(),
                         what.at("host").get<std::string>(),
                         what.at("cores").get<std::uint32_t>(),
                         what.at("memory_bytes").get<std::uint64_t>(),
                         what.value("clock_ns", std::int64_t{0}),
                         what.value("addresses", std::vector<std::string>{})};
  if (is == "signalled") return events::signalled{what.at("signal").get<int>()};
  if (is == "ends") return events::ends{what.at("why").get<std::string>()};
  if (is == "started") return events::started{name()};
  if (is == "refused") return events::refused{name(), what.at("why").get<std::string>()};
  if (is == "line")
    return events::line{name(),
                        what.at("err").get<bool>() ? output_stream::err : output_stream::out,
                        what.at("text").get<std::string>()};
  if (is == "ended")
    return events::ended{name(), what.at("pid").get<std::int64_t>(), what.at("code").get<int>(),
                         what.at("signal").get<int>(), what.at("lacked_memory").get<bool>()};
  return std::nullopt;
}

}  // namespace

std::string encode(const agent_order& order) {
  return text_of(std::visit(overloaded{
                                [](const orders::begin& what) {
                                  return json{{"is", "begin"}, {"silence_ms", what.silence_ms}};
                                },
                                [](const orders::start& what) {
                                  return json{{"is", "start"},
                                              {"name", what.name},
                                              {"arguments", what.arguments},
                                              {"environment", what.environment},
                                              {"working_folder", what.working_folder},
                                              {"secret", what.secret}};
                                },
                                [](const orders::kill& what) {
                                  return json{{"is", "kill"}, {"name", what.name}};
                                },
                                [](const orders::suspend&) {
                                  return json{{"is", "suspend"}};
                                },
                                [](const orders::resume&) {
                                  return json{{"is", "resume"}};
                                },
                                [](const orders::alive&) {
                                  return json{{"is", "alive"}};
                                },
                                [](const orders::end& what) {
                                  return json{{"is", "end"}, {"grace_ms", what.grace_ms}};
                                },
                            },
                            order));
}

std::string encode(const agent_event& event) {
  return text_of(
      std::visit(overloaded{
                     [](const events::hello& what) {
                       return json{{"is", "hello"},
                                   {"protocol", what.protocol},
                                   {"build", what.build},
                                   {"host", what.host},
                                   {"cores", what.cores},
                                   {"memory_bytes", what.memory_bytes},
                                   {"clock_ns", what.clock_ns},
                                   {"addresses", what.addresses}};
                     },
                     [](const events::started& what) {
                       return json{{"is", "started"}, {"name", what.name}};
                     },
                     [](const events::refused& what) {
                       return json{{"is", "refused"}, {"name", what.name}, {"why", what.why}};
                     },
                     [](const events::line& what) {
                       return json{{"is", "line"},
                                   {"name", what.name},
                                   {"err", what.stream == output_stream::err},
                                   {"text", what.text}};
                     },
                     [](const events::ended& what) {
                       return json{{"is", "ended"},         {"name", what.name},
                                   {"pid", what.pid},       {"code", what.code},
                                   {"signal", what.signal}, {"lacked_memory", what.lacked_memory}};
                     },
                     [](const events::alive&) {
                       return json{{"is", "alive"}};
                     },
                     [](const events::asked_to_end&) {
                       return json{{"is", "asked_to_end"}};
                     },
                     [](const events::signalled& what) {
                       return json{{"is", "signalled"}, {"signal", what.signal}};
                     },
                     [](const events::ends& what) {
                       return json{{"is", "ends"}, {"why", what.why}};
                     },
                 },
                 event));
}

result<agent_order> decode_order(std::string_view line) {
  return decode<agent_order>(line, "order", order_of);
}

result<agent_event> decode_event(std::string_view line) {
  return decode<agent_event>(line, "event", event_of);
}

std::string magic_line() {
  return std::string(agent_magic) + " " + std::to_string(agent_protocol_version);
}

}  // namespace troupe::cluster
