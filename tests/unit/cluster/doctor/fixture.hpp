#pragma once

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "cluster/doctor/findings_core.hpp"

/// Nodes and edges on which all is well, to be changed by a test.
namespace troupe::tests {

using namespace cluster::doctor;

constexpr std::uint64_t gibibyte = std::uint64_t{1} << 30;
constexpr std::uint64_t mebibyte = std::uint64_t{1} << 20;
constexpr std::int64_t second_ns = 1'000'000'000;

inline host_facts healthy_host() {
  host_facts out;
  out.host = "host";
  out.processor = "a processor";
  out.uid = 1000;
  out.user = "ada";
  out.versions = {{"UCX", "1.13.1"}, {"Linux", "6.1"}};
  out.libraries = {{"libc.so.6", "0123"}, {"libucp.so.0", "4567"}};
  out.cores = 4;
  out.memory_bytes = 8 * gibibyte;
  out.shared_bytes = 4 * gibibyte;
  out.shared_free_bytes = 4 * gibibyte;
  out.clock_ns = 100 * second_ns;
  out.asked_ns = 100 * second_ns - 1000;
  out.answered_ns = 100 * second_ns + 1000;
  return out;
}

inline patient healthy(const std::string& name = "alpha") {
  patient out;
  out.name = name;
  out.facts = healthy_host();
  out.stages = {0};
  out.threads = 2;
  out.needed_bytes = gibibyte;
  out.what_is_needed = "weights";
  out.shared_memory_processes = 3;
  return out;
}

inline edge_facts healthy_edge(const std::string& from = "alpha", const std::string& to = "beta") {
  edge_facts out;
  out.from = from;
  out.to = to;
  out.address = "10.0.0.2:40001";
  out.port_range = "32768-60999";
  out.is_connected = true;
  out.ours = {"sealed tcp", 120, 900, ""};
  out.raw = {"a plain socket", 80, 1100, ""};
  return out;
}

/// The only finding that is not well.
inline finding only(const std::vector<finding>& all) {
  std::vector<finding> wrong;
  for (const auto& each : all)
    if (each.level != severity::ok) wrong.push_back(each);
  REQUIRE(wrong.size() == 1);
  CHECK_FALSE(wrong.front().remedy.empty());
  return wrong.front();
}

inline void expect(const finding& what, severity level, const std::string& topic,
                   const std::string& word) {
  INFO(what.text);
  CHECK(what.level == level);
  CHECK(what.topic == topic);
  CHECK_THAT(what.text, Catch::Matchers::ContainsSubstring(word));
}

/// What is found of a node that is healthy but for one thing.
template <class Change>
finding found_of(const Change& change, bool is_sealed = true) {
  auto node = healthy();
  change(node, *node.facts);
  return only(host_findings(node, is_sealed));
}

/// The same where it has one folder, which is well but for one thing.
template <class Change>
finding found_of_folder(folder_facts folder, const Change& change) {
  change(folder);
  return found_of([&folder](patient&, host_facts& host) { host.folders = {folder}; });
}

}  // namespace troupe::tests
