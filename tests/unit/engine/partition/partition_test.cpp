#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cmath>
#include <limits>
#include <random>

#include "engine/partition/partition.hpp"
#include "tests/refusal.hpp"

namespace {

using Catch::Matchers::ContainsSubstring;
using troupe::errc;
using troupe::engine::even_cuts;
using troupe::engine::parse_cuts;
using indices = std::vector<std::size_t>;

const std::vector<std::string> names = {"conv1",    "bn1",      "layer1.0",  "layer1.1",
                                        "layer2.0", "layer2.1", "layer10.0", "fc"};

double slowest_stage(const std::vector<double>& costs, indices cuts) {
  cuts.push_back(costs.size());
  double slowest = 0;
  std::size_t begin = 0;
  for (const auto end : cuts) {
    double stage = 0;
    for (; begin < end; ++begin) stage += costs[begin];
    slowest = std::max(slowest, stage);
  }
  return slowest;
}

// Every way to choose `stages - 1` cuts, by trying all subsets of the places between layers.
double least_slowest(const std::vector<double>& costs, std::size_t stages) {
  double best = std::numeric_limits<double>::infinity();
  for (std::size_t subset = 0; subset < std::size_t{1} << (costs.size() - 1); ++subset) {
    indices cuts;
    for (std::size_t i = 1; i < costs.size(); ++i)
      if ((subset >> (i - 1) & 1) != 0) cuts.push_back(i);
    if (cuts.size() + 1 == stages) best = std::min(best, slowest_stage(costs, cuts));
  }
  return best;
}

}  // namespace

TEST_CASE("a cut is the index of the layer it names") {
  CHECK(parse_cuts(names, {}) == indices{});
  CHECK(parse_cuts(names, {"layer1.1", "fc"}) == indices{3, 7});
}

TEST_CASE("a cut at a group of layers means the group's first layer") {
  CHECK(parse_cuts(names, {"layer1", "layer2", "layer10"}) == indices{2, 4, 6});
}

TEST_CASE("a cut that names no layer is refused with the allowed names") {
  for (const std::string wrong : {"layer3", "layer", "layer1.", "layer2.7", ""}) {
    const auto cuts = error_of(parse_cuts(names, {wrong}), errc::bad_config);
    CHECK_THAT(cuts.text, ContainsSubstring("cut '" + wrong + "' names no layer"));
    CHECK_THAT(cuts.text, ContainsSubstring("bn1, layer1.0, layer1.1, layer2.0"));
    CHECK_THAT(cuts.text, !ContainsSubstring("conv1"));
    CHECK_THAT(cuts.text, ContainsSubstring("--partition takes auto or even"));
  }
}

TEST_CASE("a cut that is almost a layer or a word of --partition is told which") {
  struct row {
    std::vector<std::string> cuts;
    std::string meant;
  };
  for (const auto& [cuts, meant] : {row{{"automatic"}, "'auto'"}, row{{"evn"}, "'even'"},
                                    row{{"layer1.2"}, "'layer1.0'"}, row{{"layer2", "f"}, "'fc'"}})
    CHECK_THAT(parse_cuts(names, cuts).error().text,
               ContainsSubstring("names no layer; did you mean " + meant + "?"));
  CHECK_THAT(parse_cuts(names, {"automatic", "fc"}).error().text,
             !ContainsSubstring("did you mean"));
}

TEST_CASE("more chunks than layers are refused by what was asked for: stages and chunks") {
  CHECK(troupe::engine::check_stages(16, 8, 2));
  CHECK(troupe::engine::check_stages(14, 8, 2).error().text ==
        "cannot cut 14 layers into 8 stages with 2 chunks each: every chunk needs at least one "
        "layer");
  CHECK(troupe::engine::check_stages(14, 40).error().text ==
        "cannot cut 14 layers into 40 stages: every stage needs at least one layer");
}

TEST_CASE("a cut inside of a layer is refused with the layer's name") {
  CHECK_THAT(error_of(parse_cuts(names, {"layer2.0.conv1"})).text,
             ContainsSubstring("inside of the layer 'layer2.0'") &&
                 ContainsSubstring("cannot be cut") && ContainsSubstring("layer2.1"));
}

TEST_CASE("cuts out of order, repeated or before the first layer are refused") {
  CHECK_THAT(error_of(parse_cuts(names, {"layer2", "layer1"})).text,
             ContainsSubstring("'layer1' lies before the cut 'layer2.0'"));

  CHECK_THAT(error_of(parse_cuts(names, {"layer2", "layer2.0"})).text,
             ContainsSubstring("'layer2.0' repeats"));

  CHECK_THAT(error_of(parse_cuts(names, {"conv1"})).text,
             ContainsSubstring("'conv1' is where the first stage begins"));

  CHECK_THAT(error_of(parse_cuts({"fc"}, {"fc"})).text,
             ContainsSubstring("a model of one layer cannot be cut"));
}

TEST_CASE("even cuts minimise the slowest stage") {
  CHECK(even_cuts({1, 1, 1, 1}, 2) == indices{2});
  CHECK(even_cuts({1, 1, 1, 9}, 2) == indices{3});
  CHECK(even_cuts({9, 1, 1, 1}, 3) == indices{1, 3});
  CHECK(even_cuts({5, 3, 2}, 1) == indices{});
  CHECK(even_cuts({5, 3, 2}, 3) == indices{1, 2});
}

TEST_CASE("even cuts are as good as the best of all cuts") {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    std::vector<double> costs(1 + random() % 10);
    for (auto& cost : costs) cost = static_cast<double>(random() % 20);
    const auto stages = 1 + random() % costs.size();
    const auto cuts = even_cuts(costs, stages).value();
    REQUIRE(cuts.size() == stages - 1);
    REQUIRE((cuts.empty() || (cuts.front() > 0 && cuts.back() < costs.size())));
    REQUIRE(std::ranges::adjacent_find(cuts, std::greater_equal<>()) == cuts.end());
    REQUIRE(slowest_stage(costs, cuts) == least_slowest(costs, stages));
  }
}

TEST_CASE("layers that cost nothing stay with the layer before them") {
  CHECK(even_cuts({4, 0, 0, 4, 0}, 2) == indices{3});
  CHECK(even_cuts({0, 0, 0}, 2) == indices{2});
}

TEST_CASE("what cannot be cut evenly is refused with the numbers") {
  check_refused(even_cuts({1, 2, 3}, 5), errc::bad_config, "3 layers into 5 stages");

  CHECK(even_cuts({1, 2}, 0).error().code == errc::bad_config);
  CHECK(even_cuts({}, 1).error().code == errc::bad_config);
  CHECK_THAT(even_cuts({1, -2}, 1).error().text, ContainsSubstring("layer 1 is -2"));
  CHECK(even_cuts({1, std::nan("")}, 1).error().code == errc::bad_config);
  CHECK(even_cuts({1e308, 1e308}, 2).error().code == errc::bad_config);
}
