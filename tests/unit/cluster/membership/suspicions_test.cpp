#include <catch2/catch_test_macros.hpp>
#include <chrono>

#include "cluster/membership/suspicions_core.hpp"

using namespace std::chrono_literals;
using troupe::cluster::suspicions_core;

namespace {

constexpr auto grace = 1500ms;
const suspicions_core::clock::time_point begin{};

}  // namespace

TEST_CASE("A node that only another one counts as lost is due after the grace, and not before") {
  suspicions_core core;
  CHECK_FALSE(core.due({"a", "b"}, grace, begin));
  core.heard("a", "b", begin);
  core.heard("a", "b", begin + 1s);  // as each heartbeat says it
  CHECK_FALSE(core.due({"a", "b"}, grace, begin + 1499ms));
  const auto found = core.due({"a", "b"}, grace, begin + 1500ms);
  REQUIRE(found);
  CHECK(found->by == "a");
  CHECK(found->of == "b");
}

TEST_CASE("Of two nodes that have lost sight of each other, the one that was said first is due") {
  suspicions_core core;
  core.heard("a", "b", begin);
  core.heard("b", "a", begin + 100ms);
  CHECK(core.due({"a", "b", "c"}, grace, begin + 2s)->of == "b");
  CHECK_FALSE(core.due({"a", "b.2", "c"}, grace, begin + 3s));  // b has been replaced
}

TEST_CASE("What a node says that is itself gone convicts nobody") {
  suspicions_core core;
  core.heard("a", "b", begin);
  core.heard("a", "c", begin);
  CHECK_FALSE(core.due({"a.2", "b", "c"}, grace, begin + 2s));
}

TEST_CASE(
    "A suspicion stays when another one by the same node, or of the same node, is forgotten") {
  suspicions_core core;
  core.heard("a", "b", begin);
  core.heard("c", "b", begin + 100ms);
  core.heard("c", "d", begin + 200ms);
  const auto by_another = core.due({"a.2", "b", "c", "d"}, grace, begin + 2s);
  REQUIRE(by_another);
  CHECK(by_another->by == "c");
  CHECK(by_another->of == "b");
  const auto of_another = core.due({"a.2", "b.2", "c", "d"}, grace, begin + 2s);
  REQUIRE(of_another);
  CHECK(of_another->by == "c");
  CHECK(of_another->of == "d");
}
