// Which node a stage is on, who keeps its versions and copies of its slices, which network an
// address is in, and what to listen at.

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "cluster/hosts/host_addresses.hpp"
#include "cluster/hosts/keepers_core.hpp"
#include "cluster/hosts/listening_core.hpp"
#include "cluster/hosts/network_range.hpp"
#include "cluster/hosts/placement_core.hpp"
#include "cluster/hosts/slice_copies_core.hpp"
#include "cluster/membership/launchers/agent_start.hpp"
#include "tests/refusal.hpp"

namespace {

using namespace troupe;
using namespace troupe::cluster;
using Catch::Matchers::ContainsSubstring;
using places = std::vector<std::size_t>;

places placed(std::uint32_t stages, const std::vector<node_room>& nodes) {
  const auto made = place_stages(stages, nodes);
  INFO((made ? "" : made.error().text));
  REQUIRE(made);
  return *made;
}

/// What is said, and behind it the number of the node that it is about.
std::string refusal(std::uint32_t stages, const std::vector<node_room>& nodes) {
  const auto made = place_stages(stages, nodes);
  if (made) return "placed";
  const auto node = made.error().node;
  return made.error().text + (node ? " (node " + std::to_string(*node) + ")" : " (no one node)");
}

}  // namespace

TEST_CASE("stages go to nodes in proportion to their cores, neighbours together") {
  CHECK(placed(4, {{"a", 2, {}}, {"b", 2, {}}}) == places{0, 0, 1, 1});
  CHECK(placed(4, {{"a", 1, {}}, {"b", 3, {}}}) == places{0, 1, 1, 1});
  CHECK(placed(3, {{"a", 8, {}}, {"b", 8, {}}}) == places{0, 0, 1});
  CHECK(placed(3, {{"a", 8, {}}, {"b", 1, {}}}) == places{0, 0, 1});  // no node goes without
  CHECK(placed(1, {{"a", 4, {}}}) == places{0});
}

TEST_CASE("stages that a node names stay there, and the others fill what is left") {
  CHECK(placed(4, {{"a", 2, {3}}, {"b", 2, {}}}) == places{0, 1, 1, 0});
  CHECK(placed(3, {{"a", 1, {2, 0}}, {"b", 1, {1}}}) == places{0, 1, 0});
  // Two of its two cores are taken already.
  CHECK(placed(4, {{"a", 2, {0, 1}}, {"b", 2, {}}}) == places{0, 0, 1, 1});
}

TEST_CASE("a placement that cannot be is refused with node and stage") {
  CHECK_THAT(refusal(2, {}), ContainsSubstring("no node") && ContainsSubstring("(no one node)"));
  CHECK_THAT(refusal(2, {{"a", 1, {2}}}), ContainsSubstring("node \"a\": stage 2 does not exist") &&
                                              ContainsSubstring("(node 0)"));
  CHECK_THAT(refusal(2, {{"a", 1, {0}}, {"b", 1, {0}}}),
             ContainsSubstring("node \"b\": stage 0 is on node \"a\" already") &&
                 ContainsSubstring("(node 1)"));
  CHECK_THAT(
      refusal(1, {{"a", 1, {}}, {"b", 1, {}}}),
      ContainsSubstring("node \"b\" is left without a stage") && ContainsSubstring("(node 1)"));
}

TEST_CASE("threads of a stage are a share of its node's cores, or what the user says") {
  CHECK(threads_on(8, 2, 0) == 4);
  CHECK(threads_on(1, 2, 0) == 1);
  CHECK(threads_on(8, 2, 3) == 3);
}

TEST_CASE("a network holds the addresses that begin with its bits") {
  const auto ten = network_range::parse("10.0.0.0/8");
  REQUIRE(ten);
  CHECK(ten->contains("10.200.3.4"));
  CHECK_FALSE(ten->contains("11.0.0.1"));
  CHECK_FALSE(ten->contains("fd00::1"));
  const auto odd = network_range::parse("192.168.4.0/22");
  REQUIRE(odd);
  CHECK(odd->contains("192.168.7.255"));
  CHECK_FALSE(odd->contains("192.168.8.0"));
  const auto six = network_range::parse("fd00:1::/32");
  REQUIRE(six);
  CHECK(six->contains("fd00:1:2::3"));
  CHECK_FALSE(six->contains("fd00:2::"));
  CHECK(network_range::parse("0.0.0.0/0")->contains("1.2.3.4"));
  for (const auto* wrong : {"", "10.0.0.0/", "10.0.0.0/33", "10.0.0.1/8", "10.0.0/8", "alpha/8",
                            "10.0.0.0/8x", "fd00::/129"}) {
    INFO(wrong);
    CHECK_FALSE(network_range::parse(wrong));
  }
}

TEST_CASE("loopback addresses are told from others") {
  CHECK(is_loopback_address("127.0.1.1"));
  CHECK(is_loopback_address("::1"));
  CHECK_FALSE(is_loopback_address("10.0.0.1"));
  CHECK_FALSE(is_loopback_address("::2"));
  CHECK_FALSE(is_loopback_address("localhost"));
}

TEST_CASE("where to listen follows from the peer, a network or a name") {
  CHECK(listen_address("", "127.0.0.1").value() == "127.0.0.1:0");
  CHECK(listen_address("127.0.0.0/8", "10.0.0.1").value() == "127.0.0.1:0");
  CHECK(listen_address("10.1.2.3", "10.0.0.1").value() == "10.1.2.3:0");
  CHECK(listen_address("10.1.2.3:4000", "10.0.0.1").value() == "10.1.2.3:4000");
  CHECK(listen_address("[fd00::1]:4000", "10.0.0.1").value() == "[fd00::1]:4000");
  CHECK(listen_address("fd00::1", "10.0.0.1").value() == "[fd00::1]:0");
  CHECK(host_of("[fd00::1]:4000") == "fd00::1");
  CHECK(host_of("10.0.0.1:80") == "10.0.0.1");
}

TEST_CASE("a name that stands for this machine alone is refused where the peer is another") {
  const auto no = listen_address("localhost", "10.0.0.1");
  REQUIRE_FALSE(no);
  CHECK_THAT(no.error().text, ContainsSubstring("\"localhost\" stands for 127.0.0.1 here"));
  CHECK_THAT(no.error().text, ContainsSubstring("/etc/hosts"));
  CHECK(listen_address("localhost", "127.0.0.1"));
  const auto none = error_of(listen_address("203.0.113.0/24", "10.0.0.1"));
  CHECK_THAT(none.text, ContainsSubstring("has an address in the network"));
  CHECK_FALSE(listen_address("no-such-host.invalid", "10.0.0.1"));
}

TEST_CASE("Two machines that listen at one address are told from two nodes of one machine") {
  CHECK(check_addresses({{"stage-0", "alpha", "10.0.0.2", "10.0.0.2:4000"},
                         {"stage-1", "beta", "10.0.0.3", "10.0.0.3:4000"},
                         {"stage-2", "beta", "10.0.0.3", "10.0.0.3:4001"},
                         {"stage-3", "gamma", "10.0.0.3", "10.0.0.3:4002"}}));
  const auto same = check_addresses({{"stage-0", "alpha", "10.0.0.2", "172.17.0.1:4000"},
                                     {"stage-1", "beta", "10.0.0.3", "172.17.0.1:4001"}});
  REQUIRE_FALSE(same);
  CHECK(same.error().text.starts_with(
      "stage-0 on node alpha and stage-1 on node beta both listen at 172.17.0.1, so neither"));
  CHECK_FALSE(check_addresses({{"stage-0", "alpha", "fd00::2", "[fd01::1]:4000"},
                               {"stage-1", "beta", "fd00::3", "[fd01::1]:4001"}}));
}

TEST_CASE("Nodes listen in the network that they share where the trainer is in another") {
  const auto range = [](const std::vector<listening_node>& nodes, const std::string& trainer) {
    const auto found = choose_network(nodes, trainer);
    return found ? found->range.text() : "";
  };
  const std::vector<listening_node> apart{{"10.1.0.2", {"10.1.0.2/24", "10.9.0.2/24"}},
                                          {"10.2.0.3", {"10.9.0.3/24", "10.2.0.3/24"}}};
  const auto shared = choose_network(apart, "10.1.0.1");
  REQUIRE(shared);
  CHECK(*shared ==
        common_network{network_range::parse("10.9.0.0/24").value(), {"10.9.0.2", "10.9.0.3"}});
  CHECK(own_address_in(apart[1], shared->range) == "10.9.0.3");
  CHECK_FALSE(own_address_in({"10.3.0.4", {"10.3.0.4/24"}}, shared->range));
  // Where the trainer is in it, the way to the trainer is that way.
  CHECK(range(apart, "10.9.0.1").empty());
  // A third host that is not in it is reached by no address of it.
  auto more = apart;
  more.push_back({"10.3.0.4", {"10.3.0.4/24"}});
  CHECK(range(more, "10.1.0.1").empty());
  CHECK(range({apart[0]}, "10.1.0.1").empty());
  CHECK(range({{"10.1.0.2", {}}, {"10.2.0.3", {}}}, "10.1.0.1").empty());
}

TEST_CASE("Nodes look for no network that they share where one of them names its own") {
  const auto node = [](const std::string& host, const std::vector<std::string>& addresses) {
    agent_host made;
    made.name = made.host = host;
    made.addresses = addresses;
    return made;
  };
  agent_settings settings;
  settings.trainer = "10.1.0.1:4000";
  auto first = node("10.1.0.2", {"10.1.0.2/24", "10.9.0.2/24"});
  auto second = node("10.2.0.3", {"10.2.0.3/24", "10.9.0.3/24"});
  auto third = node("10.3.0.4", {"10.3.0.4/24"});
  third.listen = "10.3.0.4";
  CHECK(choose_listening({&first, &second, &third}, settings).empty());
  CHECK(first.listen.empty());
  CHECK(second.listen.empty());
  CHECK_THAT(choose_listening({&first, &second}, settings), ContainsSubstring("10.9.0.0/24"));
  CHECK(first.listen == "10.9.0.2");
  CHECK(second.listen == "10.9.0.3");
}

TEST_CASE("Of several networks that nodes share the one of their hosts' addresses is taken") {
  const auto range = [](const std::vector<listening_node>& nodes, const std::string& trainer) {
    const auto found = choose_network(nodes, trainer);
    return found ? found->range.text() : "";
  };
  std::vector<listening_node> nodes{{"10.8.0.2", {"10.1.0.2/24", "10.8.0.2/24", "fd00::2/64"}},
                                    {"10.8.0.3", {"10.1.0.3/24", "10.8.0.3/24", "fd00::3/64"}}};
  CHECK(range(nodes, "10.1.0.1") == "10.8.0.0/24");
  CHECK(range(nodes, "192.0.2.1") == "10.8.0.0/24");
  CHECK(range(nodes, "10.8.0.1").empty());
  // Reached at other addresses, as behind a translation: one of two is no choice.
  for (auto& each : nodes) each.host = "192.0.2." + each.host.substr(each.host.size() - 1);
  CHECK(range(nodes, "10.1.0.1").empty());
  CHECK(range(nodes, "172.16.0.1").empty());
  for (auto& each : nodes) each.addresses.erase(each.addresses.begin());
  CHECK(range(nodes, "172.16.0.1") == "10.8.0.0/24");  // before IP version 6
  for (auto& each : nodes) each.addresses.erase(each.addresses.begin());
  CHECK(range(nodes, "172.16.0.1") == "fd00::/64");
}

TEST_CASE("A network in which two hosts have one address is none that they share") {
  const auto bridged = [](const std::string& first, const std::string& second) {
    return choose_network(
        {{first, {"172.17.0.1/16", "10.1.0.2/32"}}, {second, {"172.17.0.1/16", "10.2.0.3/32"}}},
        "10.1.0.1");
  };
  CHECK_FALSE(bridged("10.1.0.2", "10.2.0.3"));
  CHECK_FALSE(bridged("10.1.0.2", "10.1.0.2"));  // two nodes of one host meet inside it
  const std::vector<listening_node> three{
      {"10.1.0.2", {"10.9.0.2/24"}}, {"10.1.0.2", {"10.9.0.2/24"}}, {"10.2.0.3", {"10.9.0.3/24"}}};
  const auto shared = choose_network(three, "10.1.0.1");
  REQUIRE(shared);
  CHECK(shared->addresses == std::vector<std::string>{"10.9.0.2", "10.9.0.2", "10.9.0.3"});
}

TEST_CASE("An interface's address and prefix name its network") {
  const auto text = [](const std::string& address) {
    const auto range = network_range::around(address);
    return range ? range->text() : "none";
  };
  CHECK(text("10.77.0.3/24") == "10.77.0.0/24");
  CHECK(text("10.77.3.255/20") == "10.77.0.0/20");
  CHECK(text("fd00:77::a:3/64") == "fd00:77::/64");
  CHECK(text("10.77.0.3") == "10.77.0.3/32");
  CHECK(text("10.77.0.3/33") == "none");
  CHECK(text("alpha/24") == "none");
  for (const auto& each : interface_addresses()) {
    const auto range = network_range::around(each);
    INFO(each);
    REQUIRE(range);
    CHECK(range->contains(each.substr(0, each.find('/'))));
    CHECK_FALSE(is_loopback_address(each.substr(0, each.find('/'))));
  }
}

TEST_CASE("All replicas of a stage are on one node, unless nodes name replicas") {
  const std::vector<node_room> alike{{.name = "a"}, {.name = "b"}};
  CHECK(place_replicas(2, 2, alike) == places{0, 1, 0, 1});
  CHECK(place_replicas(2, 2, {{.name = "a", .replicas = {0}}, {.name = "b", .replicas = {1}}}) ==
        places{0, 0, 1, 1});
  CHECK(place_replicas(2, 3,
                       {{.name = "a", .stages = {1}},
                        {.name = "b", .replicas = {0, 2}},
                        {.name = "c", .replicas = {1}}}) == places{1, 0, 2, 0, 1, 0});
  CHECK(place_replicas(1, 1, {{.name = "a"}}) == places{0});
}

TEST_CASE("Replicas that do not exist, have no node or leave one without a stage are refused") {
  const auto fault = [](std::uint32_t stages, std::uint32_t replicas,
                        const std::vector<node_room>& nodes) {
    return error_of(place_replicas(stages, replicas, nodes));
  };
  const auto unknown = fault(1, 2, {{.name = "a"}, {.name = "b", .replicas = {2}}});
  CHECK(unknown.node == 1);
  CHECK(unknown.key == "replicas");
  CHECK(unknown.text == "node \"b\": replica 2 does not exist; the run has 2, from 0");
  const auto homeless = fault(1, 2, {{.name = "a", .replicas = {0}}});
  CHECK_FALSE(homeless.node);
  CHECK_THAT(homeless.text, ContainsSubstring("replica 1 has no node"));
  const auto empty =
      fault(1, 2, {{.name = "a", .replicas = {0}}, {.name = "b"}, {.name = "c", .replicas = {1}}});
  CHECK(empty.node == 1);
  CHECK(empty.key == "stages");
  CHECK_THAT(empty.text, ContainsSubstring("node \"b\" is left without a stage"));
}

TEST_CASE("Versions are kept by the next stage, and by one on another host where there is one") {
  CHECK(second_keepers({"a"}) == places{0});
  CHECK(second_keepers({"a", "a", "a"}) == places{1, 2, 0});
  CHECK(second_keepers({"a", "a", "b", "b"}) == places{2, 3, 0, 1});
  CHECK(second_keepers({"a", "b", "a", "b"}) == places{1, 2, 3, 0});
  CHECK(second_keepers({"a", "a", "a", "b"}) == places{3, 3, 3, 0});
  CHECK(second_keepers({"a", "a", "a", "a", "b", "b"}) == places{4, 5, 4, 5, 0, 1});
}

TEST_CASE("The trainer keeps versions of stages that lend it memory, and those of a single stage") {
  using all = std::vector<other_keepers>;
  CHECK(keepers_beside({"a"}, {false}) == all{{{}, true}});
  CHECK(keepers_beside({"a"}, {true}) == all{{{}, true}});
  CHECK(keepers_beside({"", "", ""}, {true, true, true}) == all{{1, true}, {2, true}, {0, true}});
  CHECK(keepers_beside({"", ""}, {false, false}) == all{{1, false}, {0, false}});
  CHECK(keepers_beside({"a", "a", "b"}, {true, true, false}) ==
        all{{2, true}, {2, true}, {0, false}});
}

TEST_CASE("What outlives the trainer keeps the versions of all stages, whether they lend memory") {
  using all = std::vector<other_keepers>;
  CHECK(keepers_beside({"a"}, {false}, true) == all{{{}, true}});
  CHECK(keepers_beside({"", ""}, {false, false}, true) == all{{1, true}, {0, true}});
  CHECK(keepers_beside({"a", "a", "b"}, {true, false, false}, true) ==
        all{{2, true}, {2, true}, {0, true}});
}

TEST_CASE("No stage's versions are kept on its own host alone, and no stage keeps many more") {
  for (std::size_t stages = 2; stages <= 12; ++stages) {
    for (std::size_t count = 2; count <= stages; ++count) {
      std::vector<std::string> hosts;
      for (std::size_t i = 0; i < stages; ++i) hosts.push_back(std::to_string(i * count / stages));
      const auto second = second_keepers(hosts);
      std::vector<int> keeps(stages, 0);
      for (std::size_t i = 0; i < stages; ++i) {
        CHECK(hosts[second[i]] != hosts[i]);
        ++keeps[second[i]];
      }
      INFO(stages << " stages on " << count << " hosts");
      CHECK(*std::ranges::max_element(keeps) <= 2);
    }
  }
}

TEST_CASE("Each disk's files are copied to the next disk, and the last one's to the first") {
  CHECK(second_copies({{"a", 0}, {"b", 1}, {"c", 2}}, 3) ==
        std::vector<slice_copy_order>{{"a", 0, 1}, {"b", 1, 2}, {"c", 2, 0}});
  CHECK(second_copies({{"a", 0}, {"b", 0}}, 1).empty());
  CHECK(second_copies({}, 2).empty());
}

TEST_CASE(
    "A disk gets the files that its stages read and it lacks, from who has been asked least") {
  const std::map<std::string, std::set<std::size_t>> held{{"a", {0, 1}}, {"b", {0, 1}}, {"c", {2}}};
  CHECK(missing_copies({{"a"}, {"b"}, {"c"}}, held).empty());
  CHECK(missing_copies({{}, {}, {"a", "b", "c"}}, held) ==
        std::vector<slice_copy_order>{{"a", 0, 2}, {"b", 1, 2}});
  CHECK(missing_copies({{"c"}, {"c"}, {}}, held) ==
        std::vector<slice_copy_order>{{"c", 2, 0}, {"c", 2, 1}});
  const std::set<std::size_t> two{0, 1};
  CHECK(missing_copies({{}, {}, {"a", "b", "c", "d"}},
                       {{"a", two}, {"b", two}, {"c", two}, {"d", two}}) ==
        std::vector<slice_copy_order>{{"a", 0, 2}, {"b", 1, 2}, {"c", 0, 2}, {"d", 1, 2}});
}
