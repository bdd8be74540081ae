#include "cluster/membership/understudies.hpp"

#include <catch2/catch_test_macros.hpp>
#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tests/unit/heard_stderr.hpp"

using namespace troupe;
using namespace troupe::cluster;

namespace {

/// Starts nothing, and notes what it is to do.
struct noted_launcher final : node_launcher {
  std::map<std::string, std::string> hosts;  ///< Of each node that was started.
  std::vector<node_end> ended;
  std::vector<std::string> given_up;
  std::optional<error> refuses;
  std::string lost_host = "none";  ///< Instead of which nodes are started on `beta`.

  actors::link_factory trainer_link() override { return {}; }
  result<void> start(const std::string& name, const std::string& trainer) override {
    return start_on("", name, trainer);
  }
  result<void> start_on(const std::string& host, const std::string& name,
                        const std::string&) override {
    if (refuses) return tl::unexpected(*refuses);
    hosts[name] = host == lost_host ? "beta" : host;
    return {};
  }
  result<void> give_up(const std::string& name) override {
    given_up.push_back(name);
    std::erase_if(ended, [&](const auto& each) { return each.node == name; });
    return {};
  }
  std::vector<node_end> ends() const override { return ended; }
  void expect_ends() override {}
  std::string host_of(const std::string& name) const override { return hosts.at(name); }
  void join(bool) override {}
};

using names = std::vector<std::string>;
using known_as = understudies_core::loss;
const names alpha_and_beta{"alpha", "beta"};

/// As many as are wanted, each started where it was to be.
understudies_core filled(std::size_t most, const names& hosts) {
  understudies_core core(most);
  while (const auto next = core.next_start(hosts)) core.started(next->name, next->host);
  return core;
}

}  // namespace

// What is decided.

TEST_CASE("as many understudies are started as are wanted, on each host in turn") {
  understudies_core core(3);
  for (const std::string host : {"alpha", "beta", "alpha"}) {
    const auto next = core.next_start(alpha_and_beta);
    REQUIRE(next);
    CHECK(next->host == host);
  }
  CHECK_FALSE(core.next_start(alpha_and_beta));
  CHECK(core.names() == names{"understudy-1", "understudy-2", "understudy-3"});
}

TEST_CASE("an understudy is known by its name in any run") {
  CHECK(understudies_core::is_one("understudy-7"));
  CHECK_FALSE(understudies_core::is_one("stage-7"));
}

TEST_CASE("an understudy takes a place on its host where there is one, else on another") {
  auto core = filled(2, alpha_and_beta);
  CHECK(core.take("beta", {}) == "understudy-2");
  CHECK(core.take("beta", {}) == "understudy-1");
  CHECK(core.take("beta", {}) == std::nullopt);
  CHECK(core.next_start(alpha_and_beta)->name == "understudy-3");
}

TEST_CASE("an understudy that was started on another host takes a place there") {
  understudies_core core(2);
  for (const std::string host : {"gamma", "beta"})
    core.started(core.next_start(alpha_and_beta)->name, host);
  core.started("understudy-9", "gamma");  // lost meanwhile
  CHECK(core.take("delta", {"beta", "gamma"}) == std::nullopt);
  CHECK(core.take("beta", {}) == "understudy-2");
  CHECK(core.take("gamma", {}) == "understudy-1");
}

TEST_CASE("an understudy is left to a place on its host that is lost together with another place") {
  auto one = filled(1, {"beta"});
  CHECK(one.take("alpha", {"beta"}) == std::nullopt);
  CHECK(one.take("beta", {}) == "understudy-1");

  auto two = filled(2, {"beta"});
  CHECK(two.take("alpha", {"beta"}) == "understudy-2");
  CHECK(two.take("beta", {}) == "understudy-1");

  auto for_another = filled(1, {"beta"});
  CHECK(for_another.take("alpha", {"alpha", "gamma"}) == "understudy-1");
}

TEST_CASE("of more lost places than understudies the first have them, and no understudy is idle") {
  auto core = filled(2, {""});
  CHECK(core.take("", {"", ""}) == "understudy-1");
  CHECK(core.take("", {""}) == "understudy-2");
  CHECK(core.take("", {}) == std::nullopt);
}

TEST_CASE("understudies suffice beside a host if as many wait on others as it has places") {
  auto core = filled(3, alpha_and_beta);  // two on alpha
  CHECK(core.suffice_beside("beta", 2));
  CHECK_FALSE(core.suffice_beside("beta", 3));
  CHECK_FALSE(core.suffice_beside("alpha", 2));
  CHECK(core.suffice_beside("gamma", 3));
  CHECK(core.take("beta", {}));
  CHECK_FALSE(core.suffice_beside("alpha", 1));
}

TEST_CASE("an understudy that is lost takes no place, and its end is dealt with once") {
  auto core = filled(2, {""});
  CHECK(core.lost("stage-1") == known_as::of_another);
  CHECK(core.lost("understudy-1") == known_as::fresh);
  CHECK(core.lost("understudy-1") == known_as::known);
  CHECK(core.take("", {}) == "understudy-2");
  CHECK(core.lost("understudy-2") == known_as::of_another);  // of the place
  CHECK_FALSE(core.ended("understudy-2"));
  CHECK(core.ended("understudy-1"));
  CHECK_FALSE(core.ended("understudy-1"));
  CHECK(core.lost("understudy-1") == known_as::known);
}

TEST_CASE("an understudy that is lost before its start was told is lost") {
  understudies_core core(1);
  const auto next = core.next_start({""});
  REQUIRE(next);
  CHECK(core.lost(next->name) == known_as::fresh);
  core.started(next->name, "");
  CHECK(core.names().empty());
  CHECK(core.next_start({""})->name == "understudy-2");
}

TEST_CASE("no understudies are started without end where so many in a row are lost in vain") {
  auto core = filled(1, {""});
  for (std::size_t i = 1; i < understudies_core::most_in_vain; ++i) {
    CHECK(core.lost("understudy-" + std::to_string(i)) == known_as::fresh);
    CHECK(core.goes_on());
    REQUIRE(core.next_start({""}));
  }
  CHECK(core.lost("understudy-3") == known_as::fresh);
  CHECK_FALSE(core.goes_on());
  CHECK_FALSE(core.next_start({""}));
}

TEST_CASE("no other understudy is started where one cannot be, until another one has a place") {
  understudies_core core(2);
  core.started(core.next_start({""})->name, "");
  core.not_started(core.next_start({""})->name);
  CHECK(core.names() == names{"understudy-1"});
  CHECK_FALSE(core.next_start({""}));
  CHECK(core.take("", {}) == "understudy-1");
  CHECK(core.next_start({""})->name == "understudy-3");
}

TEST_CASE("no other understudy is started at the end of a run") {
  auto core = filled(2, {""});
  core.stop();
  CHECK(core.lost("understudy-2") == known_as::fresh);
  CHECK_FALSE(core.goes_on());
  CHECK_FALSE(core.next_start({""}));
  CHECK(core.names() == names{"understudy-1"});
}

TEST_CASE("only losses of understudies in a row are in vain") {
  auto core = filled(2, {""});
  for (int i = 0; i < 10; ++i) {
    CHECK(core.lost(core.names().front()) == known_as::fresh);
    CHECK(core.take("", {}));
    CHECK(core.goes_on());
    while (core.next_start({""})) {
    }
  }
}

// What is done.

TEST_CASE("understudies that are missing are started, and no others") {
  noted_launcher launcher;
  understudies those(launcher, 3);
  REQUIRE(those.fill(alpha_and_beta, "here"));
  CHECK(those.names() == names{"understudy-1", "understudy-2", "understudy-3"});
  CHECK(launcher.hosts == std::map<std::string, std::string>{{"understudy-1", "alpha"},
                                                             {"understudy-2", "beta"},
                                                             {"understudy-3", "alpha"}});
  REQUIRE(those.fill(alpha_and_beta, "here"));
  CHECK(launcher.hosts.size() == 3);
}

TEST_CASE("understudies suffice beside a host by where they were really started") {
  noted_launcher launcher;
  launcher.lost_host = "alpha";
  understudies spares(launcher, 1);
  REQUIRE(spares.fill({"alpha"}, ""));
  CHECK(spares.suffice_beside("alpha", 1));
  CHECK_FALSE(spares.suffice_beside("beta", 1));
}

TEST_CASE("an understudy is taken where it was really started") {
  noted_launcher launcher;
  launcher.lost_host = "alpha";
  understudies those(launcher, 2);
  REQUIRE(those.fill(alpha_and_beta, "here"));
  CHECK(those.take("alpha", {"beta", "beta"}) == std::nullopt);
  CHECK(those.take("beta", {"beta"}) == "understudy-1");
}

TEST_CASE("an understudy that has ended, or is lost, is not taken, and another is started") {
  noted_launcher launcher;
  understudies those(launcher, 3);
  REQUIRE(those.fill({""}, "here"));
  launcher.ended.push_back({"understudy-1", {errc::peer_lost, "it was killed"}});
  launcher.ended.push_back({"stage-1", {errc::peer_lost, "it was killed"}});
  CHECK(those.lost("understudy-2"));
  CHECK_FALSE(those.lost("stage-1"));
  CHECK(those.take("", {}) == "understudy-3");
  CHECK_FALSE(those.lost("understudy-3"));
  CHECK(those.lost("understudy-1"));  // its loss is told after its end was seen
  REQUIRE(those.fill({""}, "here"));
  CHECK(launcher.given_up == names{"understudy-1"});
  CHECK(those.names() == names{"understudy-4", "understudy-5", "understudy-6"});
  CHECK(those.lost("understudy-1"));
  CHECK(those.names().size() == 3);
}

TEST_CASE("an understudy that is lost is given up once it has ended, and not waited for") {
  noted_launcher launcher;
  understudies those(launcher, 1);
  REQUIRE(those.fill(alpha_and_beta, "here"));
  CHECK(those.lost("understudy-1"));
  REQUIRE(those.fill(alpha_and_beta, "here"));
  CHECK(launcher.given_up.empty());
  CHECK(those.names() == names{"understudy-2"});
  launcher.ended.push_back({"understudy-1", {errc::peer_lost, "it was killed"}});
  REQUIRE(those.fill(alpha_and_beta, "here"));
  REQUIRE(those.bury());
  CHECK(launcher.given_up == names{"understudy-1"});
  CHECK(those.names() == names{"understudy-2"});
}

TEST_CASE("no other understudy is started where the launcher refuses one") {
  noted_launcher launcher;
  understudies those(launcher, 1);
  launcher.refuses = error{errc::io_failed, "no processes"};
  CHECK(those.fill({""}, "here").error().text == "no processes");
  launcher.refuses.reset();
  CHECK(those.fill({""}, "here"));
  CHECK(launcher.hosts.empty());
  CHECK(those.names().empty());
}

TEST_CASE("the loss of an understudy is said once, also of one that ends before it has joined") {
  noted_launcher launcher;
  understudies those(launcher, 1);
  REQUIRE(those.fill({""}, "here"));
  launcher.ended.push_back({"understudy-1", {errc::peer_lost, "it was killed"}});
  std::string said;
  {
    const tests::heard_stderr heard;
    static_cast<void>(those.fill({""}, "here"));
    static_cast<void>(those.lost("understudy-1"));
    said = heard.text();
  }
  CHECK(said == "warning: understudy-1 is lost, an understudy; another one is started\n");
  CHECK(those.names() == names{"understudy-2"});
}

TEST_CASE(
    "of an understudy that has ended at the end of a run it is not said that another starts") {
  noted_launcher launcher;
  understudies those(launcher, 1);
  REQUIRE(those.fill({""}, "here"));
  launcher.ended.push_back({"understudy-1", {errc::peer_lost, "it was killed"}});
  those.stop();
  std::string said;
  {
    const tests::heard_stderr heard;
    static_cast<void>(those.bury());
    said = heard.text();
  }
  CHECK(said == "warning: understudy-1 is lost, an understudy; no other one is started\n");
  CHECK(launcher.given_up == names{"understudy-1"});
}
