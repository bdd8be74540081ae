#include "cluster/membership/understudies.hpp"

#include <catch2/catch_test_macros.hpp>
#include <map>
#include <optional>
#include <string>
#include <vector>

using namespace troupe;
using namespace troupe::cluster;

namespace {

/// Starts nothing, and notes what it is to do.
struct noted_launcher final : node_launcher {
  std::map<std::string, std::string> hosts;  ///< Of each node that was started.
  std::vector<node_end> ended;
  std::vector<std::string> given_up;
  std::optional<error> refuses;

  actors::link_factory trainer_link() override { return {}; }
  result<void> start(const std::string& name, const std::string& trainer) override {
    return start_on("", name, trainer);
  }
  result<void> start_on(const std::string& host, const std::string& name,
                        const std::string&) override {
    if (refuses) return tl::unexpected(*refuses);
    hosts[name] = host;
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
const names alpha_and_beta{"alpha", "beta"};

}  // namespace

TEST_CASE("as many understudies wait as are wanted, on each host in turn") {
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

TEST_CASE("an understudy is taken on the same host where there is one, else on another") {
  noted_launcher launcher;
  understudies those(launcher, 2);
  REQUIRE(those.fill(alpha_and_beta, "here"));
  CHECK(those.take("beta") == "understudy-2");
  CHECK(those.take("beta") == "understudy-1");
  CHECK(those.take("beta") == std::nullopt);
  REQUIRE(those.fill(alpha_and_beta, "here"));
  CHECK(those.names() == names{"understudy-3", "understudy-4"});
}

TEST_CASE("an understudy that has ended, or is lost, is not taken, and another is started") {
  noted_launcher launcher;
  understudies those(launcher, 3);
  REQUIRE(those.fill({""}, "here"));
  launcher.ended.push_back({"understudy-1", {errc::peer_lost, "it was killed"}});
  launcher.ended.push_back({"stage-1", {errc::peer_lost, "it was killed"}});
  CHECK(those.lost("understudy-2"));
  CHECK_FALSE(those.lost("stage-1"));
  CHECK(those.take("") == "understudy-3");
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

TEST_CASE("no understudies are started without end where none lives, or none can be started") {
  noted_launcher launcher;
  understudies those(launcher, 1);
  SECTION("none lives") {
    for (std::size_t i = 1; i <= understudies::most_in_vain; ++i) {
      CHECK(those.goes_on());
      REQUIRE(those.fill({""}, "here"));
      CHECK(those.lost("understudy-" + std::to_string(i)));
    }
  }
  SECTION("none can be started") {
    launcher.refuses = error{errc::io_failed, "no processes"};
    CHECK(those.fill({""}, "here").error().text == "no processes");
  }
  CHECK_FALSE(those.goes_on());
  const auto before = launcher.hosts.size();
  CHECK(those.fill({""}, "here"));
  CHECK(launcher.hosts.size() == before);
  CHECK(those.names().empty());
}

TEST_CASE("only losses in a row are in vain") {
  noted_launcher launcher;
  understudies those(launcher, 2);
  for (int i = 0; i < 10; ++i) {
    REQUIRE(those.fill({""}, "here"));
    CHECK(those.lost(those.names().front()));
    CHECK(those.take(""));
    CHECK(those.goes_on());
  }
}
