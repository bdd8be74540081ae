#include "cluster/doctor/facts/facts_text.hpp"

#include <nlohmann/json.hpp>

namespace troupe::cluster::doctor {
namespace {

using nlohmann::json;

constexpr std::size_t most_entries_a_line = 32;  // so that a line stays within an agent's

}  // namespace

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(folder_facts, path, purpose, needed_bytes,
                                                kept_at_once, may_be_made, present_bytes, place,
                                                disk, free_bytes, takes_little, bytes_per_second,
                                                error)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(fabric_facts, device, state, kind, rate)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(host_facts, host, machine, processor, container,
                                                uid, user, versions, libraries, cores, quota_cores,
                                                memory_bytes, is_memory_limited, shared_bytes,
                                                shared_free_bytes, shared_error, reading_error,
                                                open_files, most_open_files, addresses, fabrics,
                                                folders, data_source, data_error, clock_ns,
                                                asked_ns, answered_ns)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(flow_facts, by, round_trip_us, megabytes_per_second,
                                                error)
// Without the clock, which is not known of each: see json_of.
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(edge_facts, from, to, address, port_range,
                                                is_connected, ours, raw)

namespace requests {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(facts, folders, has_sockets)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(data, source, context, image_size, seed, threads, strict)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(listen, transport, wanted, peer)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(probe, transport, address, only_tries)

}  // namespace requests

namespace {

std::string text_of(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

json json_of(const edge_facts& what) {
  json out = what;
  if (what.clock_ns) {
    out["clock_ns"] = *what.clock_ns;
    out["clock_error_ns"] = what.clock_error_ns;
  }
  return out;
}

edge_facts edge_of(const json& what) {
  auto out = what.get<edge_facts>();
  if (what.contains("clock_ns")) out.clock_ns = what["clock_ns"].get<std::int64_t>();
  out.clock_error_ns = what.value("clock_error_ns", std::int64_t{0});
  return out;
}

// A line for each member, and several for a large one.
std::vector<std::string> split(const json& whole) {
  std::vector<std::string> lines;
  const auto say = [&lines](const json& part) {
    lines.push_back(std::string(facts_mark) + text_of(part));
  };
  for (const auto& [key, value] : whole.items()) {
    json part = json::object();
    if (value.is_object()) {
      for (const auto& [name, each] : value.items()) {
        part[name] = each;
        if (part.size() < most_entries_a_line) continue;
        say({{key, std::exchange(part, json::object())}});
      }
      say({{key, part}});
    } else {
      say({{key, value}});
    }
  }
  return lines;
}

template <class Facts, class Read>
result<Facts> decode(const std::vector<std::string>& lines, const Read& read) {
  json whole = json::object();
  for (const auto& line : lines) {
    if (!line.starts_with(facts_mark)) continue;
    const json part = json::parse(line.substr(facts_mark.size()), nullptr, false);
    if (!part.is_object()) return fail(errc::bad_frame, "it wrote a line that is no fact");
    whole.merge_patch(part);
  }
  if (whole.empty()) return fail(errc::bad_frame, "it wrote no fact");
  try {
    return read(whole);
  } catch (const json::exception&) {
    return fail(errc::bad_frame, "it wrote facts of another form");
  }
}

}  // namespace

std::string encode(const request& what) {
  const auto text = [](const char* is, const json& body) { return text_of({{is, body}}); };
  if (const auto* of = std::get_if<requests::facts>(&what)) return text("facts", *of);
  if (const auto* of = std::get_if<requests::data>(&what)) return text("data", *of);
  if (const auto* of = std::get_if<requests::listen>(&what)) return text("listen", *of);
  return text("probe", std::get<requests::probe>(what));
}

result<request> decode_request(std::string_view text) {
  const json what = json::parse(text, nullptr, false);
  try {
    if (what.is_object() && what.size() == 1) {
      if (what.contains("facts")) return what["facts"].get<requests::facts>();
      if (what.contains("data")) return what["data"].get<requests::data>();
      if (what.contains("listen")) return what["listen"].get<requests::listen>();
      if (what.contains("probe")) return what["probe"].get<requests::probe>();
    }
  } catch (const json::exception&) {  // a member is missing or of another kind
  }
  return fail(errc::bad_frame, "this is no request of the doctor's");
}

std::vector<std::string> lines_of(const host_facts& what) {
  return split(json(what));
}

std::vector<std::string> lines_of(const edge_facts& what) {
  return split(json_of(what));
}

std::string encode(const host_facts& what) {
  return text_of(json(what));
}

std::string encode(const edge_facts& what) {
  return text_of(json_of(what));
}

result<host_facts> decode_host(const std::vector<std::string>& lines) {
  return decode<host_facts>(lines, [](const json& whole) { return whole.get<host_facts>(); });
}

result<edge_facts> decode_edge(const std::vector<std::string>& lines) {
  return decode<edge_facts>(lines, edge_of);
}

}  // namespace troupe::cluster::doctor
