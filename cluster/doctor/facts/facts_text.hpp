#pragma once

#include <string>
#include <string_view>
#include <variant>

#include "cluster/doctor/facts/facts.hpp"

// Requests and facts as JSON. A request is one argument of the process that serves it; facts are
// lines of its standard output, each a JSON object behind `facts_mark`, which are merged: what is
// known early is said early, and no line is too long for an agent's.

namespace troupe::cluster::doctor {

inline constexpr std::string_view facts_mark = "troupe facts ";

/// The word with which a program is started to examine where it runs; a request follows.
inline constexpr const char* examine_word = "--examine";

using request = std::variant<requests::facts, requests::data, requests::listen, requests::probe>;

[[nodiscard]] std::string encode(const request& what);
/// Errors: bad_frame.
[[nodiscard]] result<request> decode_request(std::string_view text);

/// The lines that say them, with the mark and without newlines.
[[nodiscard]] std::vector<std::string> lines_of(const host_facts& what);
[[nodiscard]] std::vector<std::string> lines_of(const edge_facts& what);

/// One JSON object.
[[nodiscard]] std::string encode(const host_facts& what);
[[nodiscard]] std::string encode(const edge_facts& what);

/// Merges a process's lines; what is no line of facts is passed over. Errors: bad_frame, also where
/// there is none.
[[nodiscard]] result<host_facts> decode_host(const std::vector<std::string>& lines);
[[nodiscard]] result<edge_facts> decode_edge(const std::vector<std::string>& lines);

}  // namespace troupe::cluster::doctor
