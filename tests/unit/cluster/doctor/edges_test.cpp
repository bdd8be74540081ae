#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <string>
#include <vector>

#include "cluster/doctor/edge_plan_core.hpp"
#include "cluster/doctor/facts/facts_text.hpp"
#include "cluster/doctor/report.hpp"
#include "tests/unit/cluster/doctor/fixture.hpp"

using namespace troupe;
using namespace troupe::cluster::doctor;
using namespace troupe::tests;
using Catch::Matchers::ContainsSubstring;

TEST_CASE("An edge that one side can open is told apart from one that neither can") {
  auto open = healthy_edge("beta", "alpha");
  open.address = "10.0.0.3:40001";
  auto closed = healthy_edge("alpha", "beta");
  closed.is_connected = false;
  closed.ours = {.by = "sealed tcp", .error = "timed out"};
  const auto one_way = only(edge_findings({closed, open}));
  expect(
      one_way, severity::error, "edge",
      "alpha cannot connect to beta at 10.0.0.2:40001 (timed out); the other way, beta to alpha, "
      "is open");
  CHECK(one_way.where == "alpha -> beta");
  CHECK_THAT(one_way.remedy, ContainsSubstring("32768-60999"));
  CHECK_THAT(one_way.remedy, ContainsSubstring("firewall of beta for what comes in"));
  const auto alone = only(edge_findings({closed}));
  CHECK_THAT(alone.remedy, ContainsSubstring("firewalls of both"));
}

TEST_CASE("Two hosts that listen at one address are told apart from a firewall") {
  auto one = healthy_edge("alpha", "beta");
  auto other = healthy_edge("beta", "alpha");
  for (auto* each : {&one, &other}) {
    each->address = each == &one ? "172.17.0.1:40001" : "172.17.0.1:40002";
    each->is_connected = false;
    each->ours = {.by = "sealed tcp", .error = "Connection refused"};
  }
  const auto found = edge_findings({one, other});
  REQUIRE(found.size() == 2);
  expect(found[0], severity::error, "edge", "alpha and beta both listen at 172.17.0.1, so alpha");
  CHECK_THAT(found[0].remedy, ContainsSubstring("bridges of containers"));
}

TEST_CASE("Large messages that do not pass point to the MTU") {
  auto edge = healthy_edge();
  edge.ours.megabytes_per_second = 0;
  edge.ours.error = "no answer within 5 s";
  const auto found = only(edge_findings({edge}));
  expect(found, severity::error, "edge", "small messages pass, but large ones do not");
  CHECK_THAT(found.remedy, ContainsSubstring("MTU"));
  edge.ours.round_trip_us = 0;
  expect(only(edge_findings({edge})), severity::error, "edge", "gets no answer");
}

TEST_CASE("An edge that is well shows what it reaches beside what is below it") {
  const auto found = edge_findings({healthy_edge()});
  REQUIRE(found.size() == 1);
  CHECK(found.front().level == severity::ok);
  CHECK(found.front().text == "sealed tcp, 120 us, 900 MB/s (a plain socket: 80 us, 1100 MB/s)");
}

TEST_CASE("Clocks are compared over an edge, and where there is none by when a node answered") {
  examination all;
  all.nodes = {healthy("trainer"), healthy("beta")};
  auto edge = healthy_edge("beta", "trainer");
  edge.clock_ns = 86'400 * second_ns;  // the trainer is ahead of beta
  edge.clock_error_ns = 100'000;
  all.edges = {edge};
  expect(only(clock_findings(all)), severity::warning, "clock",
         "its clock is 24.0 hours behind the trainer's (within 100 us)");
  all.edges.clear();
  CHECK(worst_of(clock_findings(all)) == severity::ok);
  all.nodes.back().facts->clock_ns += 5 * second_ns;
  expect(only(clock_findings(all)), severity::warning, "clock", "5.0 s ahead of the trainer's");
  all.nodes.back().facts->answered_ns += 10 * second_ns;  // it took its time to answer
  CHECK(worst_of(clock_findings(all)) == severity::ok);
}

TEST_CASE("Libraries that differ between nodes are named, and kernels may differ") {
  auto other = healthy("beta");
  other.facts->versions["Linux"] = "5.10";
  CHECK(worst_of(version_findings({healthy(), other})) == severity::ok);
  other.facts->versions["UCX"] = "1.15.0";
  other.facts->libraries["libucp.so.0"] = "89ab";
  const auto found = only(version_findings({healthy(), other}));
  expect(found, severity::warning, "versions",
         "other libraries than on alpha: UCX 1.15.0 and not 1.13.1; builds of libucp.so.0 89ab and "
         "not 4567");
  CHECK(found.where == "beta");
}

TEST_CASE("Every node is tried to the trainer, and neighbours both ways") {
  using edges = std::vector<std::pair<std::size_t, std::size_t>>;
  CHECK(edges_to_probe(3, {1, 2}, 2, false) == edges{{1, 0}, {2, 0}, {1, 2}, {2, 1}});
  CHECK(edges_to_probe(3, {1, 1, 2}, 3, false) == edges{{1, 0}, {2, 0}, {1, 1}, {1, 2}, {2, 1}});
  CHECK(edges_to_probe(4, {1, 2, 3}, 3, true) ==
        edges{{1, 0}, {2, 0}, {3, 0}, {1, 2}, {2, 1}, {2, 3}, {3, 2}, {3, 1}, {1, 3}});
  CHECK(edges_to_probe(1, {0, 0}, 2, false) == edges{{0, 0}});
  CHECK(edges_to_probe(1, {0}, 1, false) == edges{{0, 0}});
  CHECK(edges_to_probe(1, {}, 0, false).empty());
}

TEST_CASE("Where there are replicas, a replica's stages and all replicas of a stage are tried") {
  using edges = std::vector<std::pair<std::size_t, std::size_t>>;
  CHECK(edges_to_probe(3, {1, 2, 1, 2}, 2, false) ==
        edges{{1, 0}, {2, 0}, {1, 2}, {2, 1}, {1, 1}, {2, 2}});
  CHECK(edges_to_probe(3, {1, 1, 2, 2}, 2, false) ==
        edges{{1, 0}, {2, 0}, {1, 1}, {2, 2}, {1, 2}, {2, 1}});
}

TEST_CASE("Edges are measured at once where no two of them share a machine") {
  using rounds = std::vector<std::vector<std::size_t>>;
  CHECK(rounds_to_measure({{1, 0}, {2, 0}, {1, 2}, {2, 1}}, {"t", "a", "b"}) ==
        rounds{{0}, {1}, {2}, {3}});
  CHECK(rounds_to_measure({{1, 0}, {2, 0}, {3, 0}, {1, 2}, {2, 1}, {2, 3}, {3, 2}},
                          {"t", "a", "b", "c"}) == rounds{{0, 5}, {1}, {2, 3}, {4}, {6}});
  CHECK(rounds_to_measure({{1, 2}, {3, 4}}, {"t", "a", "a", "a", "a"}) == rounds{{0}, {1}});
  CHECK(rounds_to_measure({}, {"t"}).empty());
}

TEST_CASE("Requests and facts come back from their text, whatever lies between") {
  const std::vector<request> asked{requests::facts{{{.path = "/a",
                                                     .purpose = "p",
                                                     .needed_bytes = 7,
                                                     .kept_at_once = 4,
                                                     .may_be_made = true}}},
                                   requests::listen{"sealed tcp", "10.0.0.0/8", "10.0.0.1"},
                                   requests::data{"text:/a", 16, 32, 7, 2, true},
                                   requests::probe{"shm", "unix:/run/x", false},
                                   requests::probe{"sealed tcp", "10.0.0.2:7", true}};
  for (const auto& each : asked) {
    const auto back = decode_request(encode(each));
    REQUIRE(back);
    CHECK(*back == each);
  }
  for (const auto* wrong : {"", "{}", "[]", "{\"listen\": {}}", "{\"other\": 1}"})
    CHECK_FALSE(decode_request(wrong));

  auto host = healthy_host();
  for (int i = 0; i < 100; ++i) host.libraries["lib" + std::to_string(i) + ".so"] = "0123456789";
  host.fabrics = {{.device = "d", .state = "s", .kind = "k", .rate = "r"}};
  auto lines = lines_of(host);
  for (const auto& line : lines) CHECK(line.size() < 8192);
  lines.insert(lines.begin() + 3, "Welcome to this host");
  const auto host_back = decode_host(lines);
  REQUIRE(host_back);
  CHECK(*host_back == host);

  auto edge = healthy_edge();
  edge.clock_ns = -5;
  const auto edge_back = decode_edge(lines_of(edge));
  REQUIRE(edge_back);
  CHECK(*edge_back == edge);
  CHECK_FALSE(decode_edge({}));
  CHECK_FALSE(decode_host({std::string(facts_mark) + "[1]"}));
  CHECK_FALSE(decode_host({std::string(facts_mark) + "{\"cores\": \"many\"}"}));
}

TEST_CASE("A report counts what it has found, and its exit code is the worst of it") {
  examination all;
  all.nodes = {healthy("trainer")};
  CHECK(exit_code(all) == 0);
  CHECK_THAT(report_text(all), ContainsSubstring("all is well\n"));
  all.nodes.front().threads = 100;
  CHECK(exit_code(all) == 1);
  CHECK_THAT(report_text(all), ContainsSubstring("0 errors, 1 warning\n"));
  all.others = {{severity::error, "settings", "", "wrong", "mend it"}};
  CHECK(exit_code(all) == 2);
  CHECK_THAT(report_text(all), ContainsSubstring("-> mend it\n"));
  CHECK_THAT(report_json(all), ContainsSubstring("\"severity\": \"error\""));
  CHECK_THAT(report_json(all), ContainsSubstring("\"libucp.so.0\": \"4567\""));
}
