// What nodes post to their links on a simulated network runs as on a real link: once, in its order,
// beside the ticks, which the network itself brings.

#include "tests/sim/nodes/live_network.hpp"

#include <catch2/catch_test_macros.hpp>
#include <chrono>
#include <future>
#include <numeric>
#include <string>
#include <vector>

#include "tests/sim/nodes/world.hpp"

namespace {

using namespace troupe;

}  // namespace

TEST_CASE("what is posted to a link of the live network runs once, in order, beside ticks") {
  constexpr int posts = 1000;
  tests::live_network network({.seed = 1});
  std::vector<int> ran;
  std::promise<void> all_ran;
  int ticks = 0;
  std::promise<void> ticked_on;
  auto link = network.link_of("node")({}).value();
  network.timekeeper_of("node")([&] {
    if (++ticks == 3) ticked_on.set_value();
  });
  for (int i = 0; i < posts; ++i)
    link->post([&, i] {
      ran.push_back(i);
      if (i + 1 == posts) all_ran.set_value();
    });
  REQUIRE(all_ran.get_future().wait_for(tests::patience) == std::future_status::ready);
  CHECK(ticked_on.get_future().wait_for(tests::patience) == std::future_status::ready);
  link.reset();  // nothing runs any more
  std::vector<int> in_order(posts);
  std::iota(in_order.begin(), in_order.end(), 0);
  CHECK(ran == in_order);
}

TEST_CASE("what is posted to the link of a paused node runs, in order, when the node goes on") {
  using namespace std::chrono_literals;
  tests::live_network network({.seed = 1});
  std::vector<std::string> ran;
  auto link = network.link_of("node")({}).value();
  link->post([&] {
    ran.emplace_back("before");
    network.pause("node", 1h);
  });
  link->post([&] { ran.emplace_back("first"); });
  link->post([&] { ran.emplace_back("second"); });
  CHECK(network.sent_by("node") == 0);  // which the network's thread answers after all of these
  CHECK(ran == std::vector<std::string>{"before"});
  network.relieve();
  CHECK(ran == std::vector<std::string>{"before", "first", "second"});
}

TEST_CASE("what is posted to a link of the live network while it ends is dropped") {
  using namespace std::chrono_literals;
  tests::live_network network({.seed = 1});
  bool late = false, later = false;
  auto link = network.link_of("node")({}).value();
  auto* const ends = link.get();
  link->post([&] { network.pause("node", 1h); });
  link->post([&, ends] {  // runs when the link ends, which ends the pause
    late = true;
    ends->post([&] { later = true; });
  });
  link.reset();
  CHECK(network.sent_by("node") == 0);
  CHECK(late);
  CHECK_FALSE(later);
}
